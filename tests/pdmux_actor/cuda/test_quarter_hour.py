"""A quarter of an hour on a GPU: its steps in order of worth, whatever becomes of the ones before."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu import fleet, goodput, shared
from gpu.half_hour import HalfHour, Order
from gpu.half_hour_tree import QUARTER_HOUR
from gpu.kv_room import fitting_gib
from gpu.script import KeptRows
from test_half_hour import DryRun

NAMES = ["preflight", "fleet", "tests", "shared", "goodput_sharegpt"]


def call(folder: Path, dry: DryRun, call_s: float = 780.0) -> int:
    return HalfHour(folder, dry, tree=QUARTER_HOUR, now=dry.now).call(total_s=780, call_s=call_s)


def test_quarter_hour__whatever_fails_or_hangs__the_later_steps_run_and_nothing_twice(tmp_path: Path) -> None:
    dry = DryRun(preflight=1, fleet=1, tests=None, shared=1)

    codes = [call(tmp_path, dry) for _ in range(2)]

    assert codes == [1, 1]
    assert dry.names == NAMES
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("# A quarter of an hour on")
    assert "Next: mend what preflight.log, fleet.log, tests.log, shared.log shows." in page


def test_quarter_hour__each_step__ends_within_thirteen_minutes(tmp_path: Path) -> None:
    class Slow(DryRun):
        def __call__(self, order: Order) -> int:
            super().__call__(order)
            self.now_s += order.limit_s
            return 0

    dry = Slow()
    codes = [call(tmp_path, dry, call_s=570.0) for _ in range(2)]

    assert codes == [3, 0]
    assert dry.names == NAMES
    assert dry.now_s <= 780
    assert "Next: `python -m benchmarks.gpu.half_hour --minutes 30`." in (tmp_path / "report.md").read_text()


def test_quarter_hour__rows_that_were_kept__are_on_the_page(tmp_path: Path) -> None:
    system, rate = {"system": "shared", "policy": "mux", "sms": 132}, {"goodput_per_s": 44.0}
    rows = {
        "fleet.py": (fleet.ROW_KEY, {"what": "start", "rate_per_s": None, "seconds": 31.0}),
        "shared.py": (shared.ROW_KEY, {**system, **rate}),
        "goodput.py": (goodput.ROW_KEY, {"workload": "w", "policy": "mux", "chunk_budget_tokens": 512, **rate}),
    }

    def run(order: Order) -> int:
        if order.step.script in rows:
            key, row = rows[order.step.script]
            KeptRows(order.rows_path, key).add(row)
        return 0

    HalfHour(tmp_path, run, tree=QUARTER_HOUR).call(total_s=780, call_s=780)

    page = (tmp_path / "report.md").read_text()
    assert "A fleet under Ray served after 31 s" in page
    assert "- shared (mux, 132 SMs): 44.00/s" in page
    assert "- w: mux (chunks of 512 tokens): 44.00/s" in page


def test_kv_pool__of_any_gpu_of_80_gb_or_more__leaves_room_for_both_models() -> None:
    assert [round(fitting_gib(gib << 30)) for gib in (139, 79)] == [80, 47]
