"""Half an hour on a GPU, well spent: what must hold first, then what is slow, then what it is worth.

    python -m benchmarks.gpu.half_hour [--minutes 30] [--quarter] [--out half_hour] [--call-minutes 9.5] [--kept FOLDER]

A preflight, then the steps of half_hour_tree.py: (A) tests and partitions, (B) queues, hot path and kernels, (C)
floors of greedy, drawn and filtered decoding, (D, E) goodput while time is left. What a step finds changes the later
ones. Each writes its rows at once into FOLDER and is gone on with there: where a call ends early, run the same line
again. `--kept` copies an earlier call's folder first, for machines that begin empty. After each step FOLDER has
report.md, and, where they were measured, profile.parquet and defaults.patch. `--quarter`: the steps of 13 minutes,
a fleet, the tests, two models and goodput, each of which runs whatever became of the ones before.

Exit code 0: all was done; 1: a step failed; 3: steps are left for another call.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.half_hour_outcome import write_outcome
from gpu.half_hour_tree import QUARTER_HOUR, TESTS, TREE, Findings, Step

_ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 30.0  # beyond its limit, for the row it is at
_LEFT, _FAILED = 3, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One step as it is to be run now. `rows_path` None: it writes none."""

    step: Step
    arguments: tuple[str, ...]
    rows_path: Path | None
    log_path: Path
    limit_s: float

    @property
    def command(self) -> list[str]:
        if self.step.script == TESTS:
            return [sys.executable, "-m", "pytest", *self.arguments]
        rows = ["--json", str(self.rows_path), "--resume", "--limit-s", f"{self.limit_s:.0f}"]
        script = str(_ROOT / "benchmarks" / "gpu" / self.step.script)
        if self.step.keeps_profile and self.rows_path:
            rows += ["--profile", str(self.rows_path.parent / "profile.parquet")]
        return [sys.executable, script, *(rows if self.rows_path else ()), *self.arguments]


Run = Callable[[Order], int]
"""Runs an order to its end and returns its exit code. Raises TimeoutError: it was ended."""


def run_in_a_process(order: Order) -> int:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **order.step.environment, "PYTHONPATH": os.pathsep.join(paths)}
    with order.log_path.open("ab") as log:
        try:
            timeout_s = order.limit_s + (_GRACE_S if order.rows_path else 0.0)
            done = subprocess.run(
                order.command,
                cwd=_ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error
    return done.returncode


class HalfHour:
    """Everything that is known lies in `out`, so that another call goes on where this one ends."""

    def __init__(
        self, out: Path, run: Run, *, tree: Sequence[Step] = TREE, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._run = run
        self._tree = tree
        self._now = now
        self._state_path = out / "state.json"
        self._state: dict[str, Any] = {"spent_s": 0.0, "steps": {}}
        if self._state_path.exists():
            self._state = json.loads(self._state_path.read_text(encoding="utf-8"))

    def call(self, *, total_s: float, call_s: float) -> int:
        """Runs steps until `call_s` are over, or `total_s` of all calls together. Returns the exit code."""
        started_s, spent_s = self._now(), self._state["spent_s"]
        is_left = False
        for step in self._tree:
            record = self._state["steps"].setdefault(step.name, {"state": "", "tries": 0, "seconds": 0.0})
            if record["state"] in ("done", "failed", "skipped"):
                continue
            if record["state"] and record["tries"] >= step.most_tries:
                record.update(state="failed", why=record.get("why") or "cut off")
                continue
            why = step.skips(self.found())
            if why:
                record.update(state="skipped", why=why)
                continue
            used_s = self._now() - started_s
            left_s = min(call_s - used_s, total_s - spent_s - used_s)
            if left_s < step.least_s:
                is_left = True
                break
            self._take(step, record, min(step.most_s, left_s - (_GRACE_S if left_s > 2 * _GRACE_S else 0.0)))
            self._state["spent_s"] = spent_s + self._now() - started_s
            self._keep()
            if step.is_required and record["state"] == "failed":
                break
        self._keep()
        if is_left:
            return _LEFT
        return _FAILED if any(r["state"] == "failed" for r in self._state["steps"].values()) else 0

    def found(self) -> Findings:
        reports = {}
        for step in self._tree:
            path = self._out / f"{step.name}.json"
            if step.keeps_rows and path.exists():
                reports[step.name] = json.loads(path.read_text(encoding="utf-8"))
        return Findings(states={n: r["state"] for n, r in self._state["steps"].items()}, reports=reports)

    def _take(self, step: Step, record: dict[str, Any], limit_s: float) -> None:
        order = Order(
            step=step,
            arguments=(*step.arguments, *step.adds(self.found())),
            rows_path=self._out / f"{step.name}.json" if step.keeps_rows else None,
            log_path=self._out / f"{step.name}.log",
            limit_s=limit_s,
        )
        record.update(
            state="cut", tries=record["tries"] + 1, arguments=list(order.arguments), why="the call ended in it"
        )
        self._keep()
        began_s = self._now()
        try:
            code = self._run(order)
        except TimeoutError:
            record.update(state="cut", why=f"longer than {limit_s:.0f} s")
        else:
            record.update(
                state="failed" if code else "done", why=f"exit code {code}, see {order.log_path.name}" if code else ""
            )
        record["seconds"] += self._now() - began_s

    def _keep(self) -> None:
        unfinished = self._state_path.with_suffix(".part")
        unfinished.write_text(json.dumps(self._state, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._state_path)
        write_outcome(self._out, self._state, self.found(), self._tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="of all calls together (default: 30, with --quarter 13)")
    parser.add_argument("--quarter", action="store_true", help="the steps that a quarter of an hour has time for")
    parser.add_argument("--call-minutes", type=float, default=9.5, help="of this call (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("half_hour"), metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="what an earlier call left; copied into --out")
    options = parser.parse_args()
    minutes = options.minutes if options.minutes is not None else (13.0 if options.quarter else 30.0)
    if min(minutes, options.call_minutes) <= 0:
        parser.error("--minutes and --call-minutes must be above 0")
    if options.kept is not None and not (options.kept / "state.json").exists():
        parser.error(f"--kept {options.kept} has no state.json: name the --out folder of an earlier call")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.kept is not None:
        shutil.copytree(options.kept, options.out, dirs_exist_ok=True)
    run = HalfHour(options.out.resolve(), run_in_a_process, tree=QUARTER_HOUR if options.quarter else TREE)
    code = run.call(total_s=60 * minutes, call_s=60 * options.call_minutes)
    print((options.out / "report.md").read_text(encoding="utf-8"))
    sys.exit(code)


if __name__ == "__main__":
    main()
