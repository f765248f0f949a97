"""Goodput of the dispatch policies on the real engine: the highest Poisson rate at which the targets are attained.

    python benchmarks/policies.py [--quick] [--workload NAME ...] [--policy NAME ...] [--json FILE] [--virtual]
    python benchmarks/policies.py --target tight --minutes 25 --guess benchmarks/results/policies_virtual.json

One model of about 100 M random parameters. TBT targets are 1.5 times ("tight") and 2 times ("loose") the solo decode
step of 8 sequences on all cores, measured at start; a first token is due after 10 such steps plus 5 times the prompt's
own solo prefill. A rate is searched for at which 99 % of the requests are in time, first token and every gap; beside
it, as before, one with 99 % of all gaps (`--gap-share`) and 95 % of the first tokens within target. The token budget of
chunked_prefill is tuned to the target beforehand. Policies take turns, run by run, on the same arrivals and lengths.

A run that fails while other processes keep more than a quarter core busy is repeated, twice at most (--quick: once).
With --minutes any run that fails is repeated once: the host of a virtual machine takes its cores away for 100 ms now
and then, which is more than 1 % of a short run's gaps and nothing that a policy can help. Where others work all the
time, `--gap-share 0.95` asks for less. `--virtual` runs the same in virtual time, from measured step times: for a
machine that is too busy, or without noise.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_models import DEFAULT_CACHE, llama_checkpoint
from effort import FULL, QUICK, TIMED, Effort
from engine_run import EngineSession, RunOutcome
from goodput import Attainment, Judge, RateSearch, RequestAttainment
from machine_facts import machine_facts, write_report
from measured_steps import MeasuredSteps, ModelledSteps, measure_steps
from request_times import TimedRequest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from solo_steps import SoloSteps, StepTimes, token_budget
from virtual_engine import VirtualSession
from workloads import WORKLOADS, Workload, make_requests

from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec, ModelSpec

TARGETS = {"tight": 1.5, "loose": 2.0}
DEFAULT_POLICIES = ("mux", "muxwise", "duetserve", "chunked_prefill", "prefill_first", "static_split")
BATCH = 8  # the typical batch that targets and budgets are measured at
MODEL = "llama"
GAPS, REQUESTS = "gaps", "requests"  # what a rate is judged by
_QUIET_CORES = 0.25
_GROWTH_FROM_A_GUESS = 1.3
_TTFT_STEPS, _TTFT_PREFILLS = 10, 5


Session = EngineSession | VirtualSession


@dataclass(frozen=True, slots=True)
class Bench:
    """What was measured before the first run. `steps` is set for virtual time."""

    checkpoint: Path
    device: DeviceSpec
    effort: Effort
    prefill_s_per_token: float
    judges: Mapping[str, Judge]
    times: StepTimes
    steps: MeasuredSteps | None
    guesses_per_s: Mapping[tuple[str, str, str], float]  # by workload, target and policy

    @property
    def gap_share(self) -> float:
        judge = self.judges[GAPS]
        assert isinstance(judge, Attainment)
        return judge.gap_share

    def session(self, policy: str, settings: SchedulerSettings) -> Session:
        checkpoints = {MODEL: self.checkpoint}
        if self.steps is not None:
            return VirtualSession(checkpoints=checkpoints, policy=policy, settings=settings, steps=self.steps)
        return EngineSession(checkpoints=checkpoints, policy=policy, settings=settings, device=self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workload's targets; `budget_tokens` is chunked prefill's."""

    name: str
    tbt_s: float
    step_s: float
    prefill_s_per_token: float
    budget_tokens: int

    def slo_of(self, prompt_tokens: int) -> Slo:
        ttft_s = _TTFT_STEPS * self.step_s + _TTFT_PREFILLS * self.prefill_s_per_token * prompt_tokens
        return Slo(ttft_s=ttft_s, tbt_s=self.tbt_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    label: str
    policy: str
    settings: SchedulerSettings


def _read_guesses(report: Path) -> dict[tuple[str, str, str], float]:
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    return {(row["workload"], row["tbt_target"], row["policy"]): row["goodput_per_s"] for row in rows}


@contextmanager
def measured_bench(args: argparse.Namespace, effort: Effort) -> Iterator[Bench]:
    """With `--virtual --steps FILE` nothing is measured if FILE exists, and the measurement is kept in it if not."""
    checkpoint = llama_checkpoint(args.cache, num_layers=effort.layers)
    judges = {GAPS: Attainment(gap_share=args.gap_share), REQUESTS: RequestAttainment()}
    guesses = _read_guesses(args.guess) if args.guess else {}
    steps = MeasuredSteps.read(args.steps) if args.virtual and args.steps and args.steps.exists() else None
    solo = None if steps is not None else SoloSteps(checkpoint)
    try:
        if solo is not None and args.virtual:
            steps = measure_steps(solo)
            if args.steps:
                steps.write(args.steps)
        if steps is not None:
            spec = ModelSpec.from_config(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
            modelled = ModelledSteps(steps.latency, spec, steps.device.num_sms)
            per_token_s = modelled.prefill_s(256) / 256
            yield Bench(checkpoint, steps.device, effort, per_token_s, judges, modelled, steps, guesses)
        else:
            assert solo is not None
            per_token_s = solo.prefill_s(256, solo.device.num_sms) / 256
            yield Bench(checkpoint, solo.device, effort, per_token_s, judges, solo, None, guesses)
    finally:
        if solo is not None:
            solo.close()


def targets_of(bench: Bench, workload: Workload, names: Sequence[str]) -> list[Target]:
    context = workload.mean_context_tokens
    step_s = bench.times.step_s(BATCH, context)
    return [
        Target(
            name=name,
            tbt_s=TARGETS[name] * step_s,
            step_s=step_s,
            prefill_s_per_token=bench.prefill_s_per_token,
            budget_tokens=token_budget(bench.times, BATCH, context, TARGETS[name] * step_s),
        )
        for name in names
    ]


def compare(
    bench: Bench,
    workload: Workload,
    target: Target,
    variants: Sequence[Variant],
    advance: Callable[[str], None],
) -> list[dict[str, object]]:
    """Rows of the variants, which take turns: none has a quieter machine than the others."""
    sessions = {variant.label: bench.session(variant.policy, variant.settings) for variant in variants}
    by_gaps, by_requests = (Trial(bench, workload, target, bench.judges[kind], advance) for kind in (GAPS, REQUESTS))
    limit_s, started_s = bench.effort.limit_s / 2, time.monotonic()
    try:
        for session in sessions.values():
            by_gaps.warm(session)
        found = _searches(by_gaps, sessions, {}, ends_s=started_s + limit_s)
        near = {label: searches[-1].goodput_per_s for label, searches in found.items()}
        by_requests.runs = by_gaps.runs
        of_requests = _searches(by_requests, sessions, near, ends_s=started_s + 2 * limit_s)
    finally:
        for session in sessions.values():
            session.close()
    return [_row(by_gaps, label, found[label], of_requests[label]) for label in sessions]


def _searches(
    trial: "Trial", sessions: Mapping[str, "Session"], near_per_s: Mapping[str, float], *, ends_s: float
) -> dict[str, list[RateSearch]]:
    """`near_per_s` is where to begin, where that is known."""
    bench = trial.bench
    found: dict[str, list[RateSearch]] = {label: [] for label in sessions}
    for repeat in range(bench.effort.repeats):
        searches = {label: _search(trial, label, found[label], near_per_s.get(label)) for label in sessions}
        while not all(search.done for search in searches.values()) and time.monotonic() < ends_s:
            for label, search in searches.items():
                if not search.done and time.monotonic() < ends_s:
                    trial.take(label, sessions[label], search, repeat)
        for label, search in searches.items():
            if repeat == 0 or search.done:  # when time is out, the last repeat counts where it has come to an end
                found[label].append(search)
        if time.monotonic() >= ends_s:
            break
    return found


def _search(trial: "Trial", label: str, earlier: Sequence[RateSearch], near_per_s: float | None) -> RateSearch:
    """From what is known already (this run's last search, another run's result) in small steps, else in large ones."""
    bench, workload, target = trial.bench, trial.workload, trial.target
    effort = bench.effort
    guess_per_s = near_per_s or bench.guesses_per_s.get((workload.name, target.name, label))
    if earlier:
        guess_per_s = earlier[-1].goodput_per_s
    if guess_per_s:
        return RateSearch(guess_per_s, effort.resolution, effort.most_runs, growth=_GROWTH_FROM_A_GUESS)
    return RateSearch(first_guess_per_s(bench, workload, target), effort.resolution, effort.most_runs)


@dataclass(slots=True)
class Trial:
    """Runs of one workload at one target."""

    bench: Bench
    workload: Workload
    target: Target
    judge: Judge
    advance: Callable[[str], None]
    best: dict[str, RunOutcome] = field(default_factory=dict)
    other_cores: list[float] = field(default_factory=list)
    runs: int = 0

    def warm(self, session: "Session") -> None:
        """Its predictions have seen the workload before the first run that counts."""
        rate_per_s = first_guess_per_s(self.bench, self.workload, self.target) / 2
        session.run(self._requests(rate_per_s, seed=0), give_up=self.judge.out_of_reach)

    def take(self, label: str, session: "Session", search: RateSearch, seed: int) -> None:
        rate_per_s, judge, effort = search.next_rate_per_s(), self.judge, self.bench.effort
        for _ in range(1 + effort.retries):
            outcome = session.run(self._requests(rate_per_s, seed=seed), give_up=judge.out_of_reach)
            self.other_cores.append(outcome.other_cores)
            quiet = outcome.other_cores < _QUIET_CORES
            if judge.met_by(outcome) or (quiet and not effort.retries_when_quiet):
                break
        search.note(rate_per_s, passed=judge.met_by(outcome))
        if judge.met_by(outcome):
            self.best[label] = outcome
        self.advance(
            f"{self.workload.name} {self.target.name} {label} {rate_per_s:.2f}/s, "
            f"gaps {outcome.gap_attainment:.1%}, requests {outcome.request_attainment:.1%}"
        )

    def _requests(self, rate_per_s: float, *, seed: int) -> list[TimedRequest]:
        self.runs += 1  # no run meets prefixes of another in the cache
        effort = self.bench.effort
        count = max(effort.least_requests, int(effort.window_s * rate_per_s))
        return make_requests(
            self.workload,
            model=MODEL,
            rate_per_s=rate_per_s,
            count=count,
            seed=seed,
            salt=self.runs,
            slo_of=self.target.slo_of,
        )


def first_guess_per_s(bench: Bench, workload: Workload, target: Target) -> float:
    """Half of what one core each for prefill and decode of the typical batch would bear."""
    prefill_s = 1.6 * bench.prefill_s_per_token * workload.mean_new_tokens
    decode_s = target.step_s * workload.mean_output_tokens / BATCH
    return 0.5 / max(prefill_s, decode_s)


def _spread(searches: Sequence[RateSearch]) -> float:
    """The widest distance between a rate that passed and one that failed, or between repeats."""
    goodputs = [search.goodput_per_s for search in searches]
    brackets = [(search.failing_per_s or search.goodput_per_s) - search.goodput_per_s for search in searches]
    return max(max(goodputs) - min(goodputs), *brackets) if len(goodputs) > 1 else brackets[0]


def _row(
    trial: Trial, label: str, searches: Sequence[RateSearch], of_requests: Sequence[RateSearch]
) -> dict[str, object]:
    """`goodput_per_s` is by gaps and first tokens, `goodput_requests_per_s` by requests in time."""
    target, best = trial.target, trial.best.get(label)
    goodputs = [search.goodput_per_s for search in searches]
    requests_per_s = [search.goodput_per_s for search in of_requests]
    row: dict[str, object] = {
        "workload": trial.workload.name,
        "tbt_target": target.name,
        "policy": label,
        "goodput_per_s": statistics.median(goodputs),
        "spread": _spread(searches),
        "repeats": goodputs,
        "goodput_requests_per_s": statistics.median(requests_per_s),
        "spread_requests": _spread(of_requests),
        "bracketed": all(search.bracketed for search in searches),
        "tbt_target_s": target.tbt_s,
        "chunk_budget_tokens": target.budget_tokens,
        "gap_share": trial.bench.gap_share,
        "other_cores": statistics.mean(trial.other_cores or [0.0]),
    }
    if best is not None:
        longest_wait_s = 4 * target.tbt_s
        row["bubble_ratio"] = {lane.value: best.lanes.bubble_ratio(lane, longest_wait_s) for lane in Lane}
        row["busy_share"] = {lane.value: best.lanes.busy_share(lane, best.duration_s) for lane in Lane}
        row["launches"] = best.lanes.counts()
    return row


def policy_variants(names: Sequence[str], target: Target) -> list[Variant]:
    settings = SchedulerSettings(chunk_budget_tokens=target.budget_tokens)
    return [Variant(label=name, policy=name, settings=settings) for name in names]


def print_table(rows: Sequence[dict[str, object]], title: str) -> None:
    table = Table(
        "workload", "TBT target", "policy", "requests in time 1/s", "±", "by gaps 1/s", "±", "bubbles p/d", title=title
    )
    for row in rows:
        bubbles = row.get("bubble_ratio")
        shares = bubbles.values() if isinstance(bubbles, dict) else ()
        shown = " / ".join("-" if share is None else f"{share:.0%}" for share in shares)
        table.add_row(
            str(row["workload"]),
            f"{row['tbt_target']} {1e3 * float(str(row['tbt_target_s'])):.0f} ms",
            str(row["policy"]),
            f"{row['goodput_requests_per_s']:.2f}",
            f"{row['spread_requests']:.2f}",
            f"{row['goodput_per_s']:.2f}",
            f"{row['spread']:.2f}",
            shown,
        )
    Console().print(table)


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and machine facts as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer workloads, targets and runs, shorter ones")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="may be given several times")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="may be given several times")
    parser.add_argument("--virtual", action="store_true", help="virtual time from measured step times")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="end after about so long: shared by workloads and targets"
    )
    parser.add_argument(
        "--guess", type=Path, metavar="FILE", help="a report, of a virtual run say: search near its figures first"
    )
    parser.add_argument(
        "--steps", type=Path, metavar="FILE", help="with --virtual: read the step times, or measure and keep them"
    )
    parser.add_argument(
        "--gap-share", type=float, default=0.99, metavar="SHARE", help="of gaps within target; less where others work"
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="FOLDER", help="keeps the checkpoints")
    return parser


def run_comparison(
    args: argparse.Namespace, title: str, variants_of: Callable[[Target], Sequence[Variant]]
) -> list[dict[str, object]]:
    effort = QUICK if args.quick else FULL
    if args.virtual:
        effort = replace(effort, layers=FULL.layers, window_s=30.0, resolution=0.05, most_runs=12)
    workloads = args.workload or (["sharegpt", "conversation"] if args.quick else list(WORKLOADS))
    targets = args.target or (["tight"] if args.quick else list(TARGETS))
    if args.minutes:
        effort = replace(TIMED, limit_s=60 * args.minutes / (len(workloads) * len(targets)))
    rows: list[dict[str, object]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} runs"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring solo steps", total=None)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=text)
            if not progress.console.is_terminal:
                progress.console.print(text)

        with measured_bench(args, effort) as bench:
            for name in workloads:
                for target in targets_of(bench, WORKLOADS[name], targets):
                    rows += compare(bench, WORKLOADS[name], target, variants_of(target), advance)
    print_table(rows, title + (", in virtual time" if args.virtual else ""))
    if args.json:
        write_report(args.json, machine_facts(bench.device, virtual=args.virtual), rows)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="may be given several times")
    args = parser.parse_args()
    quick = ("mux", "chunked_prefill", "prefill_first")
    names = args.policy or (quick if args.quick else DEFAULT_POLICIES)
    run_comparison(args, "goodput", lambda target: policy_variants(names, target))


if __name__ == "__main__":
    main()
