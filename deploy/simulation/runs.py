"""Runs of a deployed fleet: one, or several at growing rates until it can bear no more."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from deploy.simulation.deployments import DeployedFleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome

GOODPUT_ATTAINMENT = 0.99
_COLLECTION_THRESHOLDS = (50_000, 50, 50)
HOPELESS_MISSES = 0.3  # share of a stream's requests: then a rate has been shown to be too high

OnProgress = Callable[[int, float], None]
Ahead = Callable[[Sequence[float]], None]


def _alone(rates_per_s: Sequence[float]) -> None:
    """Runs nothing ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    limits: GatewayLimits
    gateways: int
    sample_partitions: bool = False
    window_s: float | None = None  # stop then; None: when all requests have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """`attainment` is what the sweep was asked for, `request_attainment` the share of the requests in time."""

    rate_per_s: float
    attainment: float
    request_attainment: float
    outcome: FleetOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """`points` ascend by rate. `goodput_per_s` is the highest rate tried that attained the targets; 0 if none did.
    `goodput_requests_per_s`: the same with the first token and every gap of a request in time.
    """

    points: tuple[SweepPoint, ...]
    goodput_per_s: float
    goodput_requests_per_s: float


def run_fleet(
    deployed: DeployedFleet,
    stream: RequestStream,
    options: RunOptions,
    *,
    give_up: Callable[[FleetRun], bool] | None = None,
    on_progress: OnProgress | None = None,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
    on_interrupt: Callable[[FleetOutcome], None] | None = None,
) -> FleetOutcome:
    """`on_interrupt` hears what was measured of the requests that had ended, before KeyboardInterrupt goes on."""
    with _seldom_collected():
        run = FleetRun(
            models=deployed.models,
            build_units=deployed.build,
            stream=stream,
            limits=options.limits,
            gateways=options.gateways,
            sample_partitions=options.sample_partitions,
            window_s=options.window_s,
            give_up=give_up,
            on_progress=on_progress,
            view_updates=deployed.view_updates,
            on_outcome=on_outcome,
        )
        try:
            return run.run()
        except KeyboardInterrupt:
            if on_interrupt is not None:
                on_interrupt(run.outcome_so_far())
            raise


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Looks for cycles seldom. What a request leaves behind goes by its reference count; to search a whole fleet takes
    a tenth of a run at Python's own thresholds.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def attainment_of(outcome: FleetOutcome) -> float:
    """Share of the requests whose first token and 99 % of whose gaps were within target; what had not ended when the
    run was stopped did not attain.
    """
    total = outcome.total()
    return total.attained / total.requests if total.requests else 0.0


def request_attainment_of(outcome: FleetOutcome) -> float:
    """Share of the requests in time: first token and every gap. As above of what had not ended."""
    total = outcome.total()
    return total.in_time / total.requests if total.requests else 0.0


def sweep_rates(
    rates_per_s: Sequence[float],
    run_at: Callable[[float], FleetOutcome],
    *,
    attains: Callable[[FleetOutcome], float] = attainment_of,
    needed: float = GOODPUT_ATTAINMENT,
    refinements: int = 4,
    by_requests: bool = True,
    ahead: Ahead = _alone,
) -> Sweep:
    """Runs every rate up to the first that fails, then bisects between it and the last that did not.

    Twice: for what `attains` says, and for the share of the requests in time, where that fails at another rate. Without
    `by_requests` the second is only read off the rates that the first has tried. `ahead` is told which rates may be run
    next, the likeliest first: what it runs beside is what would be run anyway.
    """
    outcomes: dict[float, FleetOutcome] = {}

    def passes(rate_per_s: float, measure: Callable[[FleetOutcome], float], share: float) -> bool:
        if rate_per_s not in outcomes:
            outcomes[rate_per_s] = run_at(rate_per_s)
        return measure(outcomes[rate_per_s]) >= share

    def unknown(rates_per_s: Sequence[float]) -> None:
        ahead([rate_per_s for rate_per_s in rates_per_s if rate_per_s not in outcomes])

    goodput_per_s = _highest(rates_per_s, lambda rate: passes(rate, attains, needed), refinements, unknown)
    in_time = partial(passes, measure=request_attainment_of, share=GOODPUT_ATTAINMENT)
    if by_requests:
        requests_per_s = _highest(rates_per_s, in_time, refinements, unknown)
    else:
        requests_per_s = max((rate for rate in outcomes if in_time(rate)), default=0.0)
    points = points_of(outcomes, attains)
    return Sweep(points=points, goodput_per_s=goodput_per_s, goodput_requests_per_s=requests_per_s)


def points_of(
    outcomes: Mapping[float, FleetOutcome], attains: Callable[[FleetOutcome], float] = attainment_of
) -> tuple[SweepPoint, ...]:
    """Returns the points of a sweep from its runs, by their rates."""
    return tuple(
        SweepPoint(
            rate_per_s=rate_per_s,
            attainment=attains(outcome),
            request_attainment=request_attainment_of(outcome),
            outcome=outcome,
        )
        for rate_per_s, outcome in sorted(outcomes.items())
    )


def _highest(rates_per_s: Sequence[float], passes: Callable[[float], bool], refinements: int, ahead: Ahead) -> float:
    passed, failed = 0.0, None
    ascending = sorted(rates_per_s)
    for place, rate_per_s in enumerate(ascending):
        ahead(ascending[place:])
        if not passes(rate_per_s):
            failed = rate_per_s
            break
        passed = rate_per_s
    for _ in range(refinements if failed is not None else 0):
        assert failed is not None
        middle = (passed + failed) / 2
        ahead([middle, (passed + middle) / 2, (middle + failed) / 2])
        if passes(middle):
            passed = middle
        else:
            failed = middle
    return passed


def is_hopeless(run: FleetRun) -> bool:
    """More requests have missed their targets, or wait since too long, than a rate within reach would leave."""
    missed = sum(s.finished - s.attained + s.rejected + s.failed for s in run.statistics.values())
    return missed + run.overdue_requests() > HOPELESS_MISSES * run.expected_requests
