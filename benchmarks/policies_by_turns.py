"""Requests in time at fixed rates on the real engine, policies by turns, each with the spread of its rounds.

    python benchmarks/policies_by_turns.py [--workload NAME ...] [--target NAME ...] [--policy NAME ...] [--share X ...]
                                           [--rounds N] [--virtual --steps FILE] [--json FILE] [--quick]

Where others use the machine, too, a search for goodput ends by luck: one stall fails a rate (policies.py). Here
nothing is searched. Each workload is asked for at shares of what one core each for prefill and decode would bear. In
each round every policy serves the same arrivals and lengths, who begins moves on by one, and what counts is the
difference to `mux` within a round: both had the same machine. Its interval ("from", "to") holds 95 % of the means of
rounds drawn again with replacement (bootstrap). A real run ends eight seconds after its last arrival: who has no whole
answer by then is late.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from engines.engine_environment import in_engine_environment
from engines.engine_session import EngineSession, RunOutcome
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from engines.machine import Machine, Session, measured_machine
from load.workloads import WORKLOADS, Workload, make_requests
from report.command import make_parser, print_table, write_report
from rich.progress import Progress
from search.targets import TARGETS, Target, targets_of

from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

DEFAULT_POLICIES = ("mux", "muxwise", "chunked_prefill", "static_split")
_MODEL, _LAYERS, _OURS = "llama", 16, "mux"
_TAIL_S, _LEAST_REQUESTS, _RESAMPLES = 8.0, 16, 4000
COLUMNS: Mapping[str, str] = {
    "workload": "{workload}",
    "TBT target": "{tbt_target} {tbt_target_s:.3f} s",
    "requests/s": "{rate_per_s:.2f}",
    "policy": "{policy}",
    "requests in time": "{requests_in_time:.1%}",
    "mux ahead by": "{ahead_points[mean]:+.1f}",
    "from": "{ahead_points[low]:+.1f}",
    "to": "{ahead_points[high]:+.1f}",
    "worst round": "{worst_round:.1%}",
    "gaps": "{gaps_in_time:.2%}",
    "first tokens": "{first_tokens_in_time:.1%}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One workload at one target and rate, which all policies serve by turns."""

    workload: Workload
    target: Target
    share_of_bearable: float
    window_s: float

    @property
    def rate_per_s(self) -> float:
        return self.share_of_bearable * self.target.bearable_per_s(self.workload)

    def serve(self, session: Session, *, seed: int, salt: int) -> RunOutcome:
        """`salt` keeps a run from meeting another's prompts in the prefix cache."""
        requests = make_requests(
            self.workload,
            model=_MODEL,
            rate_per_s=self.rate_per_s,
            count=max(_LEAST_REQUESTS, int(self.window_s * self.rate_per_s)),
            seed=seed,
            salt=salt,
            slo_of=self.target.slo_of,
        )
        if isinstance(session, EngineSession):
            return session.run(requests, tail_s=_TAIL_S)
        return session.run(requests)


def turns(policies: Sequence[str], number: int) -> list[str]:
    """Who begins moves on by one a round.

    >>> turns(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    first = number % len(policies)
    return [*policies[first:], *policies[:first]]


def points_ahead(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Mean difference of paired rounds in points, and where 95 % of the means of resampled rounds lie."""
    differences = 100 * (np.array(ours) - np.array(others))
    drawn = np.random.default_rng(0).choice(differences, size=(_RESAMPLES, differences.size)).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"mean": float(differences.mean()), "low": float(low), "high": float(high)}


def rows_of(
    block: Block,
    sessions: Mapping[str, Session],
    rounds: int,
    salts: Iterator[int],
    advance: Callable[[str], None],
) -> list[dict[str, Any]]:
    outcomes: dict[str, list[RunOutcome]] = {policy: [] for policy in sessions}
    for number in range(rounds):
        for policy in turns(list(sessions), number):
            outcome = block.serve(sessions[policy], seed=number, salt=next(salts))
            outcomes[policy].append(outcome)
            advance(f"{block.workload.name} {block.target.name} {policy} {outcome.request_attainment:.0%}")
    in_time = {policy: [run.request_attainment for run in runs] for policy, runs in outcomes.items()}
    return [
        {
            "workload": block.workload.name,
            "tbt_target": block.target.name,
            "tbt_target_s": block.target.tbt_s,
            "share_of_bearable": block.share_of_bearable,
            "rate_per_s": block.rate_per_s,
            "policy": policy,
            "requests_in_time": mean(in_time[policy]),
            "rounds": in_time[policy],
            "worst_round": min(in_time[policy]),
            "ahead_points": points_ahead(in_time[_OURS], in_time[policy]) if policy != _OURS else None,
            "gaps_in_time": mean(run.gap_attainment for run in runs),
            "first_tokens_in_time": mean(run.ttft_attainment for run in runs),
            "requests": sum(len(run.requests) for run in runs),
            "other_cores": mean(run.other_cores for run in runs),
        }
        for policy, runs in outcomes.items()
    ]


def blocks_of(args: Namespace, machine: Machine) -> Iterator[Block]:
    window_s = 8.0 if args.quick else 12.0
    per_token_s = machine.prefill_s_per_token
    for name in args.workload or (["sharegpt"] if args.quick else list(WORKLOADS)):
        for target in targets_of(machine, WORKLOADS[name], args.target or list(TARGETS), per_token_s):
            for share in args.share or [0.4]:
                yield Block(workload=WORKLOADS[name], target=target, share_of_bearable=share, window_s=window_s)


def run(args: Namespace) -> None:
    if not args.virtual:
        in_engine_environment()
    policies = list(dict.fromkeys([_OURS, *(args.policy or DEFAULT_POLICIES)]))
    rounds = args.rounds or (2 if args.quick else 4)
    checkpoint = llama_checkpoint(DEFAULT_CACHE, num_layers=_LAYERS)
    rows: list[dict[str, Any]] = []
    salts = iter(range(1_000_000))
    with (
        measured_machine(checkpoint, virtual=args.virtual, steps_file=args.steps) as machine,
        Progress(transient=True) as progress,
    ):
        blocks = list(blocks_of(args, machine))
        task = progress.add_task("serving", total=len(blocks) * len(policies) * rounds)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=text)

        for block in blocks:
            settings = SchedulerSettings(chunk_budget_tokens=block.target.budget_tokens)
            sessions = {policy: machine.session({_MODEL: checkpoint}, policy, settings) for policy in policies}
            for session in sessions.values():  # predictions have seen the workload before the first run that counts
                block.serve(session, seed=rounds, salt=next(salts))
            rows += rows_of(block, sessions, rounds, salts, advance)
            for session in sessions.values():
                session.close()
            write_report(args.json, machine.facts(), rows)  # what is there stays if this is interrupted
    print_table(rows, COLUMNS, title="Requests in time" + (", in virtual time" if args.virtual else ""), width=170)


if __name__ == "__main__":
    parser = make_parser(__doc__, quick="one workload, two rounds, shorter ones")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="may be given several times")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="may be given several times")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="may be given several times")
    parser.add_argument("--share", action="append", type=float, metavar="X", help="of what one core each would bear")
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of each policy at each rate")
    parser.add_argument("--virtual", action="store_true", help="virtual time from measured step times")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="with --virtual: the step times")
    run(parser.parse_args())
