"""Runs the cases of an experiment and sets what was simulated beside what was published."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from deploy.simulation.deployments import DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.fleet_modes.split import Split
from deploy.simulation.fleet_outcome import FleetOutcome, PartitionSample
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.papers.experiment_file import (
    LOWER_IS_BETTER,
    CaseSection,
    ExperimentFile,
    Metric,
    NeedSection,
    PublishedSection,
    SystemSection,
)
from deploy.simulation.papers.workloads import workload_stream
from deploy.simulation.runs import RunOptions, run_fleet, sweep_rates
from deploy.simulation.streams import RequestStream
from deploy.simulation.workers import Workers
from router.limits import GatewayLimits

_SAME_SHARE = 0.03  # figures closer than this are no ordering
_LONGEST_PROMPT_PERCENT = 99  # of the prompts, what a chunk budget is tuned for
_HOPELESS_BACKLOG = 0.5  # share of all requests that wait for their first token too long
_TAKES_ALL = GatewayLimits(max_queued=1 << 30, hold_s=math.inf)  # the papers' systems turn nobody away
_QUICK_REFINEMENTS, _REFINEMENTS = 2, 5

OnRun = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`simulated` and `published` are as in the paper: absolute, or relative to the first system. Beside them
    `request_attainment`, the share of the requests whose first token and every gap met the case's targets: at the
    goodput, or at the one rate of the case. None where no rate will do.
    """

    case: str
    metric: Metric
    system: str
    simulated: float | None
    published: float | None
    absolute: float | None
    request_attainment: float | None

    @property
    def ratio(self) -> float | None:
        if self.simulated is None or not self.published:
            return None
        return self.simulated / self.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """`better` beats `worse` in the paper. `is_tie`: here they are within a few percent of each other."""

    case: str
    metric: Metric
    better: str
    worse: str
    holds: bool
    is_tie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    metrics: Mapping[Metric, float | None]
    request_attainment: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    rows: tuple[Row, ...]
    orderings: tuple[Ordering, ...]
    unplaced: Mapping[str, Mapping[str, str]]


class RunningCase:
    """The systems of a case, given to `workers`, which are told of each run before it starts."""

    def __init__(self, case: CaseSection, *, quick: bool, seed: int, workers: Workers[str]) -> None:
        self._case = case
        self._tasks = {
            system.name: workers.submit(partial(_measure_system, case, system, quick, seed)) for system in case.systems
        }

    def result(self, on_system: Callable[[], None] = lambda: None) -> CaseResult:
        """`on_system` is called when a system has been measured, in their order."""
        measured: dict[str, _Measured] = {}
        unplaced: dict[str, Mapping[str, str]] = {}
        for name, task in self._tasks.items():
            measured[name], unplaced[name] = task.result()
            on_system()
        rows: list[Row] = []
        orderings: list[Ordering] = []
        for published in self._case.published:
            rows += (of_figure := _rows(self._case, published, measured))
            orderings += _orderings(of_figure, published)
        return CaseResult(rows=tuple(rows), orderings=tuple(orderings), unplaced=unplaced)


def _measure_system(
    case: CaseSection, system: SystemSection, quick: bool, seed: int, on_run: OnRun
) -> tuple[_Measured, Mapping[str, str]]:
    """Returns what was measured, and what was not placed."""
    deployed = deploy_fleet(case.fleet, _deployment(case, system, seed))
    return _measure(case, system, deployed, quick=quick, seed=seed, on_run=on_run), dict(deployed.unplaced)


def _deployment(case: CaseSection, system: SystemSection, seed: int) -> Deployment:
    """Chunked prefill is tuned offline to the workload, as the papers do with it."""
    stream = _stream(case, case.rates_per_s[0], quick=False, seed=seed)
    prompts = [record.input_tokens for record in stream.records()]
    return Deployment(
        name=system.name,
        policy=system.policy,
        solver=system.solver,
        lays_out=system.lays_out,
        fleet_mode=None if system.fleet_mode is None else system.fleet_mode.name,
        split=Split() if system.fleet_mode is None else system.fleet_mode.split(),
        scheduler=system.scheduler,
        engine_slowdown=system.engine_slowdown,
        host_s=case.host_s,
        longest_prompt_tokens=int(np.percentile(prompts, _LONGEST_PROMPT_PERCENT)),
    )


def _stream(case: CaseSection, rate_per_s: float, *, quick: bool, seed: int) -> RequestStream:
    requests = case.workload.count(rate_per_s, quick=quick)
    return workload_stream(case.workload, case.weights(), requests=requests, rate_per_s=rate_per_s, seed=seed)


def _measure(
    case: CaseSection, system: SystemSection, deployed: DeployedFleet, *, quick: bool, seed: int, on_run: OnRun
) -> _Measured:
    samples = any(published.metric == "prefill_sms_share" for published in case.published)
    options = RunOptions(limits=_TAKES_ALL, gateways=1, window_s=case.window_s, sample_partitions=samples)

    def run_at(rate_per_s: float) -> FleetOutcome:
        on_run(f"{case.name}: {system.name} at {rate_per_s:.3g} requests/s")
        stream = _stream(case, rate_per_s, quick=quick, seed=seed)
        give_up = _cannot_sustain(case.need, stream) if len(case.rates_per_s) > 1 else None
        return run_fleet(deployed, stream, options, give_up=give_up)

    if len(case.rates_per_s) == 1:
        return _metrics(run_at(case.rates_per_s[0]), goodput_per_s=None)
    found = sweep_rates(
        case.rates_per_s,
        run_at,
        attains=lambda outcome: float(sustains(outcome, case.need)),
        refinements=_QUICK_REFINEMENTS if quick else _REFINEMENTS,
        by_requests=False,
    )
    best = next((p.outcome for p in found.points if p.rate_per_s == found.goodput_per_s), None)
    return _metrics(best, goodput_per_s=found.goodput_per_s)


def sustains(outcome: FleetOutcome, need: NeedSection) -> bool:
    """All requests ended, and the needed percentiles were met."""
    total = outcome.total()
    if outcome.gave_up or total.finished < total.requests:
        return False
    tbt_s, ttft_s = total.tbt.percentile_s(99), total.ttft.percentile_s(99)
    return (
        (need.tbt_p99_s is None or tbt_s is None or tbt_s <= need.tbt_p99_s)
        and (need.ttft_p99_s is None or ttft_s is None or ttft_s <= need.ttft_p99_s)
        and (need.slo_share is None or total.attained >= need.slo_share * total.requests)
    )


def _cannot_sustain(need: NeedSection, stream: RequestStream) -> Callable[[FleetRun], bool]:
    """Once more than a hundredth of the whole run's first tokens or gaps are late, the rest changes nothing."""
    most_gaps = sum(max(0, record.output_tokens - 1) for record in stream.records())

    def gives_up(run: FleetRun) -> bool:
        if run.overdue_requests() > _HOPELESS_BACKLOG * run.expected_requests:
            return True
        late_first = late_gaps = 0
        if need.ttft_p99_s is not None:
            late_first = run.overdue_requests(need.ttft_p99_s)
            late_first += sum(s.ttft.num_beyond(need.ttft_p99_s) for s in run.statistics.values())
        if need.tbt_p99_s is not None:
            late_gaps = sum(s.tbt.num_beyond(need.tbt_p99_s) for s in run.statistics.values())
        return late_first > 0.01 * run.expected_requests + 1 or late_gaps > 0.01 * most_gaps + 1

    return gives_up


def _metrics(outcome: FleetOutcome | None, *, goodput_per_s: float | None) -> _Measured:
    if outcome is None:
        nothing: Mapping[Metric, float | None] = {"goodput_per_s": goodput_per_s, "goodput_tokens_per_s": 0.0}
        return _Measured(metrics=nothing, request_attainment=None)
    total = outcome.total()
    figures = total.figures(outcome.duration_s)
    metrics: Mapping[Metric, float | None] = {
        "goodput_per_s": goodput_per_s,
        "goodput_tokens_per_s": figures.tokens_per_s,
        "requests_per_s": figures.requests_per_s,
        "ttft_mean_s": figures.ttft_s.mean,
        "ttft_p50_s": figures.ttft_s.p50,
        "tbt_p50_s": figures.tbt_s.p50,
        "tpot_mean_s": figures.tpot_s.mean,
        "e2e_mean_s": figures.e2e_s.mean,
        "tbt_mean_s": figures.gap_per_token_s,
        "ttft_p99_s": total.ttft.percentile_s(99),
        "ttft_per_token_p99_s": total.ttft_per_token.percentile_s(99),
        "tbt_p99_s": total.tbt.percentile_s(99),
        "slo_share": figures.slo_attainment,
        "hot_requests_share": _of_hottest_fifth([s.requests for s in outcome.models.values()]),
        "prefill_sms_share": _prefill_share(outcome.partitions),
    }
    return _Measured(metrics=metrics, request_attainment=figures.request_attainment)


def _prefill_share(samples: Sequence[PartitionSample]) -> float | None:
    """The mean share of the SMs that prefill has."""
    shares = [s.prefill_sms / (s.prefill_sms + s.decode_sms) for s in samples]
    return sum(shares) / len(shares) if shares else None


def _of_hottest_fifth(requests: Sequence[int]) -> float | None:
    """The share of all requests that go to the most popular fifth of the models."""
    hottest = sorted(requests, reverse=True)[: max(1, round(len(requests) / 5))]
    return sum(hottest) / sum(requests) if any(requests) else None


def _rows(case: CaseSection, published: PublishedSection, measured: Mapping[str, _Measured]) -> list[Row]:
    base = measured[case.systems[0].name].metrics.get(published.metric)
    rows = []
    for system in case.systems:
        absolute = simulated = measured[system.name].metrics.get(published.metric)
        if published.relative:
            simulated = absolute / base if absolute is not None and base else None
        rows.append(
            Row(
                case=case.name,
                metric=published.metric,
                system=system.name,
                simulated=simulated,
                published=published.values.get(system.name),
                absolute=absolute,
                request_attainment=measured[system.name].request_attainment,
            )
        )
    return rows


def _orderings(rows: Sequence[Row], published: PublishedSection) -> list[Ordering]:
    """Of every pair of systems that the paper tells apart by the metric."""
    lower_is_better = published.metric in LOWER_IS_BETTER
    pairs = list(published.orders)
    for (a, of_a), (b, of_b) in combinations(published.values.items(), 2):
        if abs(of_a - of_b) > _SAME_SHARE * max(of_a, of_b):
            pairs.append((a, b) if (of_a > of_b) != lower_is_better else (b, a))
    simulated = {row.system: row.simulated for row in rows}
    return [_ordering(rows[0].case, published.metric, simulated, a, b, lower_first=lower_is_better) for a, b in pairs]


def orderings_of_cases(experiment: ExperimentFile, results: Sequence[CaseResult]) -> list[Ordering]:
    """Returns the orderings of neighbours in `case_orders`, `case` is their system. What was not run is left out."""
    orderings = []
    for order in experiment.case_orders:
        figures = {
            row.case: row.absolute
            for result in results
            for row in result.rows
            if row.system == order.system and row.metric == order.metric
        }
        run = [case for case in order.cases if case in figures]
        orderings += [
            _ordering(order.system, order.metric, figures, larger, smaller, lower_first=False)
            for larger, smaller in pairwise(run)
        ]
    return orderings


def _ordering(
    case: str, metric: Metric, figures: Mapping[str, float | None], better: str, worse: str, *, lower_first: bool
) -> Ordering:
    first, second = figures[better], figures[worse]
    holds = is_tie = False
    if first is not None and second is not None:
        holds = first < second if lower_first else first > second
        is_tie = abs(first - second) <= _SAME_SHARE * max(first, second)
    return Ordering(case=case, metric=metric, better=better, worse=worse, holds=holds, is_tie=is_tie)
