"""Alternating blocks: every system once a round, each time another one first. What was disturbed is measured again.

Pure: systems, the clock of foreign load and the file are passed in.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Figures = Mapping[str, Any]
_TRIES = 3


class ForeignLoad(Protocol):
    """Cores that others kept busy since `begin`."""

    def begin(self) -> None: ...

    def cores(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`figures` by name of the work; None: the system did not serve, and `reason` says why."""

    system: str
    round: int
    foreign_cores: float
    figures: Figures | None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.system, self.round


class SystemFailed(Exception):
    """A system cannot be measured: it is left out from here on."""


def order(systems: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round by round, rotated, so that none always follows the same one.

    >>> [name for _, name in order(["a", "b", "c"], 2)]
    ['a', 'b', 'c', 'b', 'c', 'a']
    """
    for number in range(rounds):
        turn = number % len(systems)
        for name in (*systems[turn:], *systems[:turn]):
            yield number, name


def measured_blocks(
    systems: Sequence[str],
    rounds: int,
    measure: Callable[[str], Figures],
    load: ForeignLoad,
    *,
    most_foreign_cores: float,
    known: Sequence[Block],
    keep: Callable[[Sequence[Block]], None],
    dropped: Callable[[Block], None],
) -> list[Block]:
    """Measures what `known` lacks and passes on all blocks so far after each. A disturbed block is dropped and tried
    again, three times at most; each is told to `dropped`.
    """
    blocks = list(known)
    have = {block.key for block in blocks}
    failed = {block.system for block in blocks if block.figures is None}
    for number, system in order(systems, rounds):
        for _ in range(_TRIES):
            if (system, number) in have or system in failed:
                break
            load.begin()
            try:
                figures, reason = measure(system), None
            except SystemFailed as error:
                figures, reason = None, str(error)
                failed.add(system)
            block = Block(system=system, round=number, foreign_cores=load.cores(), figures=figures, reason=reason)
            if figures is not None and block.foreign_cores > most_foreign_cores:
                dropped(block)
                continue
            blocks.append(block)
            have.add(block.key)
            keep(blocks)
    return blocks


def rising(
    rates_per_s: Sequence[float], attempt: Callable[[float], Mapping[str, Any]], *, every: bool = False
) -> tuple[float | None, list[dict[str, Any]]]:
    """Tries rates until one fails, or `every` one; the last before the first that failed, None without, and what each
    attempt gave.
    """
    goodput, tried, missed = None, [], False
    for rate in rates_per_s:
        outcome = attempt(rate)
        tried.append({"rate_per_s": rate, **outcome})
        missed = missed or not outcome["passed"]
        if missed and not every:
            break
        if not missed:
            goodput = rate
    return goodput, tried


def earlier_blocks(path: Path | None, checkpoint: str, plan: Mapping[str, Any]) -> tuple[list[Block], float | None]:
    """Reads blocks and the target of a gap in seconds; none where there is no file. Raises SystemExit where the file
    holds those of another checkpoint or `plan`: they would stand beside what is measured now as if they were like it.
    """
    if path is None or not path.exists():
        return [], None
    report = json.loads(path.read_text(encoding="utf-8"))
    theirs = {"checkpoint": report.get("checkpoint", "random-100m")} | report["plan"]
    ours = {"checkpoint": checkpoint} | json.loads(json.dumps(plan))
    others = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    if others:
        differ = "; ".join(f"{name} {theirs[name]} and not {ours[name]}" for name in others)
        raise SystemExit(f"--json {path}: its blocks were asked for {differ}. Ask for the same, or name another file")
    return [Block(**row) for row in report["rows"]], report["tbt_target_s"]
