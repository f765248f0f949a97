"""The half hour on a GPU, dry: its whole tree over the CPU rig, what findings change, going on after a call."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cuda_rig import make_cuda_rig
from engines import hand_made_launches
from gpu import fleet, floors, gaps, half_hour, host_step, hot_path, kernels, questions
from gpu.floor_profile import write_floor_profile
from gpu.half_hour import HalfHour, Order
from gpu.half_hour_aims import aim_lines, aims
from gpu.half_hour_outcome import best_tiling, defaults_patch, report
from gpu.half_hour_tree import TREE, Findings
from gpu.script import KeptRows
from test_gpu_benchmarks import FixedStreams, HostGpu
from torch.profiler import ProfilerActivity

from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.models.config import DecoderConfig
from profiler.gpus.h200 import DEVICE as H200
from profiler.partition_rates import PartitionRate
from profiler.profile_file import read_profile

ROOT = Path(__file__).parents[3]
TINY = DecoderConfig.from_config("tiny", floors.SHAPES["tiny"], "float32").spec


def tiny_executor() -> TorchCudaExecutor:
    executor = make_cuda_rig().executor
    executor.device = replace(executor.device, partition_granularity_sms=2)
    return executor


def ask(order: Order) -> None:
    lanes = questions.Lanes(
        HostGpu(), FixedStreams(), torch.device("cpu"), num_sms=4, matrix_size=8, copy_bytes=64, repeats=2
    )
    only = [order.arguments[order.arguments.index("--only") + 1]]
    questions.ask(lanes, KeptRows(order.rows_path, questions.ROW_KEY), stride=1, only=only)


def measure_floors(order: Order) -> None:
    sizes = floors.Sizes(decodes=((1, 3),), prefills=(3,), partition_stride=1, repeats=2, sampled=((1, 3),))
    kept, executor = KeptRows(order.rows_path, floors.ROW_KEY), tiny_executor()
    floors.run(executor, "tiny", sizes, kept, dtype="float32")
    place = Path(order.command[order.command.index("--profile") + 1])
    floors.keep_profile(place, kept, executor.device, "tiny", (), sizes)


def measure_kernels(order: Order) -> None:
    seconds = iter([1.0, *[2.0] * 3, *[1.0] * 3])  # the other tiling is twice as fast
    kernels.measure_all(
        KeptRows(order.rows_path, kernels.ROW_KEY),
        torch.device("cpu"),
        replace(H200, num_sms=1),
        lambda work: next(seconds),
        heads=kernels.Heads(query=2, kv=1, dim=16, block_tokens=4),
        decodes=((2, 6, 9),),
        prefills=(5,),
        tilings=(kernels.DEFAULT_TILING, replace(kernels.DEFAULT_TILING, num_stages=4)),
        dtype=torch.float32,
    )


def profile_hot_path(order: Order) -> None:
    sizes = {"batch": 2, "context": 5, "prompt": 4, "slices": 1, "layers": 1}
    kept = KeptRows(order.rows_path, ("kernel",))
    hot_path.run(tiny_executor(), "tiny", sizes, kept, activities=[ProfilerActivity.CPU], dtype="float32")


def measure_gaps(order: Order) -> None:
    """Its own test runs it; here what a good GPU would have."""
    kept = KeptRows(order.rows_path, gaps.ROW_KEY)
    for policy, gap_s, ttft_s in (("mux", 0.02, 0.11), ("chunked_prefill", 0.05, 0.1)):
        kept.add({"rate_per_s": 8.0, "policy": policy, "gap_p99_s": gap_s, "ttft_p50_s": ttft_s})


def measure_host(order: Order) -> None:
    kept = KeptRows(order.rows_path, host_step.ROW_KEY)
    kept.attempt({"batch": 2, "tokens": 33}, lambda: host_step.measure(2, 33, 3))


def serve(order: Order) -> None:
    row = {"workload": "sharegpt", "policy": "mux", "chunk_budget_tokens": 1024, "goodput_per_s": 24.0}
    KeptRows(order.rows_path, ("workload",)).add(row)


def start_fleet(order: Order) -> None:
    """Its own run takes a machine's minutes; here the rows that it keeps at once."""
    assert order.command[-3:] == ["--quick", "--rate", "8"]
    kept = KeptRows(order.rows_path, fleet.ROW_KEY)
    kept.add({"what": "start", "rate_per_s": None, "seconds": 31.0})
    kept.add({"what": "engine killed", "rate_per_s": 4.0, "lost": 0})


SCRIPTS: dict[str, Callable[[Order], None]] = {
    "preflight.py": lambda order: None,
    "pytest": lambda order: None,
    "fleet.py": start_fleet,
    "questions.py": ask,
    "hot_path.py": profile_hot_path,
    "kernels.py": measure_kernels,
    "floors.py": measure_floors,
    "gaps.py": measure_gaps,
    "host_step.py": measure_host,
    "goodput.py": serve,  # its own tests run it; here one row
}


class DryRun:
    """`codes`: exit codes of steps that fail, or None for one that is ended while it runs."""

    def __init__(self, **codes: int | None) -> None:
        self.orders: list[Order] = []
        self.codes = codes
        self.now_s = 0.0

    def __call__(self, order: Order) -> int:
        self.orders.append(order)
        self.now_s += 10.0
        code = self.codes.get(order.step.name, 0)
        if code is None:
            raise TimeoutError
        return code

    def now(self) -> float:
        return self.now_s

    @property
    def names(self) -> list[str]:
        return [order.step.name for order in self.orders]


def test_half_hour__dry_on_the_cpu_rig__every_step_runs_and_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_made_launches, "_TRIES_PER_STEP", 0)
    monkeypatch.setattr(questions, "_MANY_QUEUED", 3)

    def run(order: Order) -> int:
        SCRIPTS[order.step.script](order)
        return 0

    code = HalfHour(tmp_path, run).call(total_s=1800, call_s=1800)

    state = json.loads((tmp_path / "state.json").read_text())["steps"]
    assert code == 0
    assert {name for name, record in state.items() if record["state"] == "skipped"} == {
        "first_failed_test",
        "hot_path_small",
        "floors_small",
    }
    assert {record["state"] for record in state.values()} == {"done", "skipped"}
    assert list(state) == [step.name for step in TREE]
    page = (tmp_path / "report.md").read_text()
    assert "A fleet under Ray served after 31 s, 0 requests lost when its engine was killed." in page
    assert "Partitions hold." in page
    assert "| filtered | 1 | 3 |" in page
    assert "| 1,024 in, 128 out, 8/s | half the p99 gap" in page
    assert "| gap 0.40, first token 1.10 times | holds |" in page
    assert "0 MiB beside | holds |" in page
    assert "sharegpt: mux (chunks of 1024 tokens): 24.00/s" in page
    patch = tmp_path / "defaults.patch"
    assert "+    num_stages: int = 4" in patch.read_text()
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, check=True, timeout=60)
    measured = read_profile(tmp_path / "profile.parquet").models["tiny"].measurements
    assert {(m.launch.phase, m.launch.sms, m.beside is not None) for m in measured} == {
        ("decode", 4, False),
        ("prefill", 4, False),
        ("decode", 2, False),
        ("decode", 2, True),
        ("prefill", 2, False),
    }


def test_half_hour__call_ends__the_next_one_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    dry = DryRun()

    codes = [HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=100) for _ in range(3)]

    assert codes[0] == 3
    assert codes[-1] == 0
    assert len(set(dry.names)) == len(dry.names)


def test_half_hour__minutes_of_all_calls_spent__begins_nothing(tmp_path: Path) -> None:
    dry = DryRun()
    for _ in range(4):
        HalfHour(tmp_path, dry, now=dry.now).call(total_s=40, call_s=100)

    assert dry.names == ["preflight"]  # the fleet needs more than is left


def test_half_hour__step_is_ended_twice__counts_as_failed_and_the_others_run(tmp_path: Path) -> None:
    dry = DryRun(tests=None)
    for _ in range(3):
        code = HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    assert code == 1
    assert dry.names.count("tests") == 2
    assert "floors" in dry.names


def test_half_hour__killed_within_a_step__takes_it_up_again(tmp_path: Path) -> None:
    def killed(order: Order) -> int:
        if order.step.name == "tests":
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        HalfHour(tmp_path, killed).call(total_s=1800, call_s=1800)
    dry = DryRun()
    HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    assert dry.names[0] == "tests"


def test_half_hour__preflight_fails__nothing_else_runs(tmp_path: Path) -> None:
    dry = DryRun(preflight=1)

    assert HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800) == 1
    assert dry.names == ["preflight"]


def test_half_hour__tests_and_floors_fail__falls_back_to_the_first_failure_and_the_small_model(tmp_path: Path) -> None:
    dry = DryRun(tests=1, floors=1)

    HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    arguments = {order.step.name: order.arguments for order in dry.orders}
    assert "-x" in arguments["first_failed_test"]
    assert "llama-3-1b" in arguments["floors_small"]
    assert "llama-3-1b" in arguments["goodput_sharegpt"]
    assert "no speed below counts" in (tmp_path / "report.md").read_text()


def test_half_hour__graphs_leave_their_partition__later_steps_decode_eagerly(tmp_path: Path) -> None:
    rows = [{"question": "census", "lane": "decode", "sms": 16, "eager_sms": 16, "graph_sms": 132}]
    (tmp_path / "census.json").write_text(json.dumps({"machine": {}, "rows": rows}))
    dry = DryRun()

    HalfHour(tmp_path, dry, now=dry.now).call(total_s=1800, call_s=1800)

    eager = {order.step.name for order in dry.orders if "--eager" in order.arguments}
    assert eager == {"floors", "gaps", "goodput_sharegpt", "goodput_loogle"}
    assert "leave their partition" in (tmp_path / "report.md").read_text()


def floor_row(measured: str, batch: int, tokens: int, over_floor: float) -> dict[str, object]:
    return {"measured": measured, "batch": batch, "tokens": tokens, "sms": 132, "over_floor": over_floor}


def test_aims__found_and_missed__each_has_its_line() -> None:
    rows = [
        floor_row("decode", 32, 1024, 1.2),
        {**floor_row("decode", 32, 1024, 9.0), "sms": 64},
        floor_row("decode", 32, 8192, 1.3),
        floor_row("skewed", 64, 512, 1.4),
    ]
    served = [
        {"workload": "sharegpt", "policy": policy, "goodput_per_s": rate}
        for policy, rate in (("mux", 25.0), ("chunked_prefill", 10.0), ("chunked_prefill", 20.0))
    ]
    host = [{"batch": 128, "tokens": 1024, "us": 108.0, "drawn_us": 151.0}]
    arenas = {"arena_taken_bytes": 3 << 20, "beside_arena_bytes": 1 << 20}
    reports = {
        "floors": {"rows": rows, "machine": {"arenas": arenas}},
        "goodput_sharegpt": {"rows": served},
        "host_step": {"rows": host},
    }

    found = {aim.name: (aim.found, aim.holds) for aim in aims(Findings(states={}, reports=reports))}

    assert found == {
        "decode, 32 x 1k": ("83%", True),
        "decode, 32 x 8k": ("77%", False),
        "decode, 63 of 512 and one of 32k": ("71%", True),
        "prefill of 8k": (None, False),
        "goodput of `mux` on ShareGPT shapes": ("1.25 times", True),
        "1,024 in, 128 out": (None, False),
        "host time of a decode step, 128 x 1k": ("108 us greedy, 151 us drawn", False),
        "memory of launches": ("3 MiB in them, 1 MiB beside", False),
    }


def test_aims__nothing_measured__says_so_of_each() -> None:
    lines = aim_lines(Findings(states={}, reports={}))

    assert all(re.search(r"\| not measured: \w+ has not run yet \|$", line) for line in lines[2:-1])
    assert len(lines) == 3 + 8


def test_aims__step_that_failed_or_was_left_out__is_named_with_the_cause() -> None:
    states = {"floors": "failed", "gaps": "cut", "host_step": "done", "goodput_sharegpt": "skipped"}

    said = "\n".join(aim_lines(Findings(states=states, reports={})))

    assert "not measured: floors failed, see floors.log" in said
    assert "not measured: gaps was cut off" in said
    assert "not measured: host_step has no such row" in said
    assert "not measured: goodput_sharegpt was left out" in said


def record(state: str, why: str = "") -> dict[str, object]:
    return {"state": state, "why": why, "seconds": 1.0}


@pytest.mark.parametrize(
    ("steps", "next_line"),
    [
        ({"preflight": record("failed")}, "Next: preflight.log says"),
        ({"preflight": record("done"), "tests": record("failed")}, "Next: mend what first_failed_test.log shows"),
        (
            {step.name: record("done") for step in TREE[:-2]},
            "`python -m benchmarks.gpu.half_hour --minutes 30`, with `--kept FOLDER` on a machine that began empty: "
            "2 steps are left, the next one is goodput_sharegpt.",
        ),
        ({step.name: record("done") for step in TREE}, "Next: `python benchmarks/gpu/shared.py"),
    ],
)
def test_report__whatever_the_end__names_the_next_command(steps: dict[str, Any], next_line: str) -> None:
    found = Findings(states={name: step["state"] for name, step in steps.items()}, reports={})

    assert next_line in report({"spent_s": 60.0, "steps": steps}, found, "").splitlines()[-1]


def test_report__rows_that_failed_and_defaults_that_change__are_named() -> None:
    failures = {"decode 32": "OutOfMemoryError: 2 GiB | free", "decode 128": "the same"}
    found = Findings(states={"floors": "failed"}, reports={"floors": {"rows": [], "failures": failures}})
    patch = "--- a/x.py\n+++ b/x.py\n-    num_stages: int = 3\n+    num_stages: int = 4  # tiles\n"

    said = report({"spent_s": 60.0, "steps": {"floors": record("failed", "exit code 1, see floors.log")}}, found, patch)

    assert "exit code 1, see floors.log; 2 rows failed, the first: decode 32: OutOfMemoryError: 2 GiB / free |" in said
    assert "sets what was faster by more than 3%: num_stages: int = 4." in said


def test_defaults__queues_that_wait_less__are_in_the_patch() -> None:
    found = ((8, 9.0, 1.0), (32, 1.0, 5.0), (64, 1.1, 1.2))  # a launch waits, a graph does, neither
    reports = {f"queues_{n}": {"rows": [{"ratio": eager, "graph_ratio": graph}]} for n, eager, graph in found}

    assert "+_HARDWARE_QUEUES = 64" in defaults_patch(Findings(states={}, reports=reports))


def test_defaults__tiling_that_is_hardly_better__stays() -> None:
    row = {"kernel": "decode", "batch": 1, "tokens": 8, "longest": 8, "tile_tokens": 64, "num_warps": 4}
    rows = [{**row, "num_stages": 3, "share_of_peak": 0.80}, {**row, "num_stages": 4, "share_of_peak": 0.81}]

    assert best_tiling(rows) is None


def test_profile__rates_of_all_shares__are_those_of_its_device(tmp_path: Path) -> None:
    rates = [PartitionRate(sms=s, flops_per_s=s * 1e12, bandwidth_bytes_per_s=s * 1e10) for s in (64, 132)]
    path = tmp_path / "profile.parquet"

    write_floor_profile(path, (), model="tiny", spec=TINY, device=H200, rates=rates, beside_tokens=8)

    assert read_profile(path).device.peak_flops_per_s == 132e12


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--kept", "nowhere"]])
def test_main__options_that_cannot_be__are_refused_with_the_remedy(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["half_hour", "--out", str(tmp_path), *arguments])

    with pytest.raises(SystemExit) as exited:
        half_hour.main()

    assert exited.value.code == 2
    assert arguments[0] in capsys.readouterr().err
