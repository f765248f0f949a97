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
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engines.engine_environment import in_engine_environment
from engines.engine_session import RunOutcome
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from engines.machine import Machine, Session, measured_machine
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, Workload, make_requests
from report.command import make_parser, print_table, write_report
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from search.goodput import Attainment, Judge, RateSearch, RequestAttainment
from search.targets import TARGETS, Target, targets_of

from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

DEFAULT_POLICIES = ("mux", "muxwise", "duetserve", "chunked_prefill", "prefill_first", "static_split")
QUICK_POLICIES = ("mux", "chunked_prefill", "prefill_first")
MODEL = "llama"
GAPS, REQUESTS = "gaps", "requests"  # what a rate is judged by
_LAYERS = 16
_QUIET_CORES = 0.25
_GROWTH_FROM_A_GUESS = 1.3
COLUMNS: Mapping[str, str] = {
    "workload": "{workload}",
    "TBT target": "{tbt_target} {tbt_target_s:.3f} s",
    "policy": "{policy}",
    "requests in time 1/s": "{goodput_requests_per_s:.2f}",
    "±": "{spread_requests:.2f}",
    "by gaps 1/s": "{goodput_per_s:.2f}",
    "± ": "{spread:.2f}",
    "bubbles p/d": "{bubble_ratio[prefill]:.0%} / {bubble_ratio[decode]:.0%}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is run. `window_s` is how long requests arrive in one run, `limit_s` is per workload and target."""

    window_s: float
    least_requests: int
    most_runs: int
    resolution: float
    repeats: int
    retries: int
    retries_when_quiet: bool = False
    limit_s: float = math.inf


FULL = Effort(window_s=20.0, least_requests=24, most_runs=10, resolution=0.08, repeats=3, retries=2)
QUICK = Effort(window_s=8.0, least_requests=16, most_runs=6, resolution=0.2, repeats=1, retries=1)
# For a run of so many minutes; guesses make the searches short.
TIMED = Effort(
    window_s=12.0, least_requests=16, most_runs=6, resolution=0.14, repeats=3, retries=1, retries_when_quiet=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was known before the first run. `guesses_per_s` are by workload, target and policy."""

    checkpoint: Path
    machine: Machine
    effort: Effort
    judges: Mapping[str, Judge]
    gap_share: float
    guesses_per_s: Mapping[tuple[str, str, str], float]

    def session(self, policy: str, settings: SchedulerSettings) -> Session:
        return self.machine.session({MODEL: self.checkpoint}, policy, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    label: str
    policy: str
    settings: SchedulerSettings


def _read_guesses(report: Path) -> dict[tuple[str, str, str], float]:
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    return {(row["workload"], row["tbt_target"], row["policy"]): row["goodput_per_s"] for row in rows}


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
    trial: "Trial", sessions: Mapping[str, Session], near_per_s: Mapping[str, float], *, ends_s: float
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
    return RateSearch(first_guess_per_s(workload, target), effort.resolution, effort.most_runs)


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

    def warm(self, session: Session) -> None:
        """Its predictions have seen the workload before the first run that counts."""
        rate_per_s = first_guess_per_s(self.workload, self.target) / 2
        session.run(self._requests(rate_per_s, seed=0), give_up=self.judge.out_of_reach)

    def take(self, label: str, session: Session, search: RateSearch, seed: int) -> None:
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


def first_guess_per_s(workload: Workload, target: Target) -> float:
    return 0.5 * target.bearable_per_s(workload, prefill_factor=1.6)


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


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = make_parser(description, quick="fewer workloads, targets and runs, shorter ones")
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


def run_comparison(args: argparse.Namespace, title: str, variants_of: Callable[[Target], Sequence[Variant]]) -> None:
    if not args.virtual:
        in_engine_environment()
    effort = QUICK if args.quick else FULL
    if args.virtual:
        effort = replace(effort, window_s=30.0, resolution=0.05, most_runs=12)
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

        checkpoint = llama_checkpoint(args.cache, num_layers=_LAYERS)
        with measured_machine(checkpoint, virtual=args.virtual, steps_file=args.steps) as machine:
            bench = Bench(
                checkpoint=checkpoint,
                machine=machine,
                effort=effort,
                judges={GAPS: Attainment(gap_share=args.gap_share), REQUESTS: RequestAttainment()},
                gap_share=args.gap_share,
                guesses_per_s=_read_guesses(args.guess) if args.guess else {},
            )
            per_token_s = machine.prefill_s_per_token
            for workload in map(WORKLOADS.__getitem__, workloads):
                for target in targets_of(machine, workload, targets, per_token_s):
                    rows += compare(bench, workload, target, variants_of(target), advance)
    print_table(rows, COLUMNS, title=title + (", in virtual time" if args.virtual else ""))
    write_report(args.json, machine.facts(), rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="may be given several times")
    args = parser.parse_args()
    names = args.policy or (QUICK_POLICIES if args.quick else DEFAULT_POLICIES)
    run_comparison(args, "goodput", lambda target: policy_variants(names, target))


if __name__ == "__main__":
    main()
