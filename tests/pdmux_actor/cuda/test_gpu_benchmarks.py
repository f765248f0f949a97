"""The GPU benchmarks' own code, on a tiny model in Triton's interpreter: that they run and what their rows hold."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cuda_rig import NoStream, make_cuda_rig
from engines import hand_made_launches
from gpu import floors, gaps, goodput, hot_path, kernels, questions, script, shared
from gpu.random_models import SHAPES
from gpu.script import KeptRows
from torch.profiler import ProfilerActivity

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.launch import PREFILL_LANE, Lane
from profiler.gpus.h200 import DEVICE as H200
from profiler.specs import ModelSpec

LLAMA_8B = ModelSpec.from_config(SHAPES["llama-3-8b"], "bfloat16")


def tiny_executor() -> TorchCudaExecutor:
    executor = make_cuda_rig().executor
    executor.device = replace(executor.device, partition_granularity_sms=2)
    return executor


def test_floors__llama_8b_on_h200__are_those_of_the_arithmetic() -> None:
    # 15.0 GB of weights that every step reads, 131 kB of KV a token, 4.3 TB/s, 790 TFLOP/s.
    assert floors.decode_floor_s(LLAMA_8B, H200, 1, 1024) == pytest.approx(3.5e-3, rel=0.02)
    assert floors.decode_floor_s(LLAMA_8B, H200, 128, 1024) == pytest.approx(7.5e-3, rel=0.02)
    assert floors.prefill_floor_s(LLAMA_8B, H200, 2048) == pytest.approx(38e-3, rel=0.1)


def test_floors__tiny_model__rows_for_every_partition_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Launches are over at once here: no step ever runs beside a prefill, and trying costs time.
    monkeypatch.setattr(hand_made_launches, "_TRIES_PER_STEP", 0)
    result, picture = tmp_path / "floors.json", tmp_path / "floors.png"
    sizes = floors.Sizes(decodes=((1, 3),), prefills=(3,), partition_stride=1, repeats=2, skewed=((2, 1),))
    kept = KeptRows(result, floors.ROW_KEY)

    floors.run(tiny_executor(), "tiny", sizes, kept, dtype="float32")
    floors.print_tables(kept)
    script.draw_report(result, picture, script.draw_floors)

    written = json.loads(result.read_text())
    assert {(row["measured"], row["sms"]) for row in written["rows"]} == {
        ("decode", 4),
        ("ahead", 4),
        ("skewed", 4),
        ("prefill", 4),
        ("decode", 2),
        ("beside", 2),
        ("prefill", 2),
    }
    assert all(row["over_floor"] > 1 and row["seconds"] > 0 for row in written["rows"])
    assert written["machine"]["repartition"]["step_after_repartition_s"] > 0
    assert written["machine"]["graph_memory_share"] > 0
    assert written["machine"]["all_graphs"]["graphs"] == 0  # none were asked for
    assert written["machine"]["graphs_that_failed"] == 0
    assert picture.stat().st_size > 1000


def test_floors__killed_and_resumed__measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tmp_path / "floors.json"
    sizes = floors.Sizes(decodes=((2, 9),), prefills=(6,), partition_stride=1, repeats=2)
    asked: list[floors.Case] = []

    def measure(launches: object, case: floors.Case, sizes: floors.Sizes) -> dict[str, object]:
        asked.append(case)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"measured": case.measured, "batch": case.batch, "tokens": case.tokens, "sms": case.sms}

    monkeypatch.setattr(floors, "measure", measure)
    monkeypatch.setattr(floors, "measure_repartition_s", lambda launches, repeats: {"step_s": 1.0})
    executor = tiny_executor()
    with pytest.raises(KeyboardInterrupt):
        floors.run(executor, "tiny", sizes, KeptRows(result, floors.ROW_KEY), dtype="float32")
    assert len(json.loads(result.read_text())["rows"]) == 2

    floors.run(tiny_executor(), "tiny", sizes, KeptRows(result, floors.ROW_KEY, resume=True), dtype="float32")

    assert len(asked) == 3 + 4
    assert asked[2] == asked[3]
    assert len(json.loads(result.read_text())["rows"]) == 6


def test_kept_rows__limit_reached__wants_no_more() -> None:
    assert not KeptRows(None, ("a",), limit_s=0.0).wants(a=1)
    assert KeptRows(None, ("a",)).wants(a=1)


class HostEvent:
    def record(self, stream: NoStream) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "HostEvent") -> float:
        return 1e3 * (later.at_s - self.at_s)


class FixedCensus:
    """Each lane of `FixedStreams` runs on its own SMs."""

    def __init__(self, gpu: "HostGpu") -> None:
        self._gpu = gpu

    def take(self) -> None:
        stream = self._gpu.current
        self._seen = range(stream.sms) if stream.lane is Lane.DECODE else range(100, 100 + stream.sms)

    def sms(self) -> frozenset[int]:
        return frozenset(self._seen)


class HostGpu:
    def __init__(self) -> None:
        self.current = NoStream(Lane.DECODE, 0)
        self.carved: list[int | None] = []

    def on(self, stream: NoStream) -> nullcontext[None]:
        self.current = stream
        return nullcontext()

    def event(self) -> HostEvent:
        return HostEvent()

    def captured(self, stream: NoStream, work: questions.Work) -> questions.Work:
        return work

    def census(self) -> FixedCensus:
        return FixedCensus(self)

    def carve_out(self, sms: int | None) -> None:
        self.carved.append(sms)

    def reserved_bytes(self) -> int:
        return 0


class FixedStreams:
    kind = "none"
    step_sms = 2
    unpartitioned_reason = None

    def stream(self, lane: Lane, sms: int) -> NoStream:
        return NoStream(lane, sms)

    def part_stream(self, first_sm: int, sms: int) -> NoStream:
        return NoStream(Lane.DECODE, sms)

    def sms_given(self, lane: Lane, sms: int) -> int:
        return sms

    def close(self) -> None:
        pass


def test_questions__without_a_gpu__every_row_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MANY_QUEUED", 3)  # each is a kernel in the interpreter
    result, picture = tmp_path / "questions.json", tmp_path / "questions.png"
    gpu = HostGpu()
    lanes = questions.Lanes(
        gpu, FixedStreams(), torch.device("cpu"), num_sms=6, matrix_size=16, copy_bytes=64, repeats=2
    )
    kept = KeptRows(result, questions.ROW_KEY)

    questions.ask(lanes, kept, stride=1)
    questions.print_tables(kept)
    script.draw_report(result, picture, script.draw_questions)

    rows = json.loads(result.read_text())["rows"]
    assert [(r["lane"], r["sms"], r["eager_sms"], r["graph_sms"], r["shared_sms"]) for r in rows[:4]] == [
        ("decode", 2, 2, 2, 0),
        ("prefill", 4, 4, 4, 0),
        ("decode", 4, 4, 4, 0),
        ("prefill", 2, 2, 2, 0),
    ]
    products = ("product", "product of few rows")
    works = {*products, *(f"{name} told its SMs" for name in products), "copy", "triton"}
    assert {r["work"] for r in rows if r["question"] == "speed"} == works
    assert all(r[name] > 0 for r in rows if r["question"] == "speed" for name in ("eager", "graph"))
    queues = [r for r in rows if r["question"] == "queue"]
    assert [r["ratio"] > 0 and r["graph_ratio"] > 0 for r in queues] == [True] * 4
    # (2, 4), (2, 2) and (4, 2) of 6: the second is of lanes whose shares are of different splits.
    assert kept.facts["combinations"] == {"checked": 3, "overlapping": []}
    assert gpu.carved == 2 * [4, None, 2, None, 2, None, 4, None]
    assert picture.stat().st_size > 1000


def test_combinations__shares_of_different_splits_overlap__are_named_and_fail_the_run() -> None:
    kept = KeptRows(None, questions.ROW_KEY)
    for lane, sms, ids in (("decode", 2, [0, 1]), ("decode", 4, [0, 1, 2, 3]), ("prefill", 2, [1, 5])):
        kept.add({"question": "census", "lane": lane, "sms": sms, "work": "", "sm_ids": ids})

    questions.note_combinations(kept, 6)

    assert kept.facts["combinations"] == {
        "checked": 2,
        "overlapping": [
            {"decode_sms": 2, "prefill_sms": 2, "shared": [1]},
            {"decode_sms": 4, "prefill_sms": 2, "shared": [1]},
        ],
    }
    assert "SMs in common" in kept.failures["combinations"]


def test_attempt__one_row_that_fails__is_noted_and_costs_no_other(tmp_path: Path) -> None:
    result = tmp_path / "rows.json"
    kept = KeptRows(result, ("n",))

    def measure(n: int) -> dict[str, object]:
        if n == 1:
            raise RuntimeError("CUDA error: out of memory")
        return {"seconds": 0.5}

    for n in range(3):
        kept.attempt({"n": n}, lambda n=n: measure(n))

    written = json.loads(result.read_text())
    assert [row["n"] for row in written["rows"]] == [0, 2]
    assert written["machine"]["failures"] == {"1": "RuntimeError: CUDA error: out of memory"}
    resumed = KeptRows(result, ("n",), resume=True)
    assert [n for n in range(3) if resumed.wants(n=n)] == [1]
    resumed.attempt({"n": 1}, lambda: {"seconds": 0.7})
    assert json.loads(result.read_text())["machine"] == {}


def test_attempt__no_gpu__is_not_a_row_that_failed() -> None:
    def measure() -> dict[str, object]:
        raise DeviceUnavailable(reason="no GPU", remedy="find one")

    with pytest.raises(DeviceUnavailable):
        KeptRows(None, ("n",)).attempt({"n": 1}, measure)


def test_run_script__row_failed__the_others_are_kept_and_drawn_and_the_exit_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    monkeypatch.setattr(sys, "argv", ["script", "--json", str(result), "--plot", str(picture)])
    shown: list[int] = []

    def measure(options: argparse.Namespace, kept: KeptRows) -> None:
        kept.attempt({"n": 0}, lambda: {"x": 1 / 0})
        kept.attempt({"n": 1}, lambda: {"x": 2.0})

    with pytest.raises(SystemExit, match="0: ZeroDivisionError"):
        script.run_script(
            script.make_parser("", quick="less"),
            ("n",),
            measure,
            lambda kept: shown.append(len(kept.rows)),
            lambda figure, rows: figure.subplots().plot([row["x"] for row in rows]),
        )

    assert shown == [1]
    assert picture.stat().st_size > 1000


def test_hot_path__tiny_model__drives_both_lanes_and_reads_its_trace(tmp_path: Path) -> None:
    result, picture = tmp_path / "hot_path.json", tmp_path / "hot_path.png"
    executor = tiny_executor()
    sizes = {"batch": 2, "context": 5, "prompt": 4, "slices": 2, "layers": 1}

    hot_path.run(
        executor,
        "tiny",
        sizes,
        KeptRows(result, ("kernel",)),
        activities=[ProfilerActivity.CPU],
        dtype="float32",
    )
    kept = KeptRows(result, ("kernel",), resume=True)
    kept.add({"kernel": "some_kernel", "seconds": 1.0})
    script.draw_report(result, picture, hot_path.draw)

    assert kept.facts["decode_sms"] == 2
    assert statistics.fmean(kept.facts["busy_share_of_streams"].values() or [0.0]) == 0.0  # no device here
    assert {stream.lane for stream in executor._lanes.used} == set(Lane)
    assert executor._runners[PREFILL_LANE]._prefills == {}
    assert picture.stat().st_size > 1000


def test_hot_path__second_go__sends_no_row_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[int] = []
    goes: list[int] = []
    upload, drive = DeviceKv.upload_missing, hot_path.drive

    def counted_upload(self: DeviceKv, rows: np.ndarray, row_table: np.ndarray) -> None:
        uploads.append(len(goes))
        upload(self, rows, row_table)

    def counted_drive(*arguments: object, **sizes: int) -> None:
        goes.append(1)
        drive(*arguments, **sizes)

    monkeypatch.setattr(DeviceKv, "upload_missing", counted_upload)
    monkeypatch.setattr(hot_path, "drive", counted_drive)
    sizes = {"batch": 3, "context": 9, "prompt": 6, "slices": 2, "layers": 1}

    hot_path.run(
        tiny_executor(),
        "tiny",
        sizes,
        KeptRows(None, ("kernel",)),
        activities=[ProfilerActivity.CPU],
        dtype="float32",
    )

    assert len(goes) == 2
    assert uploads == [1]  # waits for its copy: it has no place in what is profiled


@pytest.mark.parametrize("script", ["floors", "gaps", "goodput", "hot_path", "kernels", "questions", "shared"])
def test_main__no_gpu__says_so_without_a_traceback(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    scripts = (floors, gaps, goodput, hot_path, kernels, questions, shared)
    main = {module.__name__.rpartition(".")[2]: module for module in scripts}
    monkeypatch.setattr(sys, "argv", [script, "--quick"])

    with pytest.raises(SystemExit, match=r"no CUDA device to serve on: .*; (install|check)"):
        main[script].main()


@pytest.mark.parametrize("arguments", [["--plot", "x.png"], ["--resume"], ["--replot"]])
def test_main__plot_or_resume_without_a_file__is_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["floors", *arguments])

    with pytest.raises(SystemExit) as exited:
        floors.main()

    assert exited.value.code == 2
    assert "--json FILE" in capsys.readouterr().err


def test_kernels__tiny_heads__a_row_for_each_tiling_and_the_best_of_each_shape(tmp_path: Path) -> None:
    result, picture = tmp_path / "kernels.json", tmp_path / "kernels.png"
    kept = KeptRows(result, kernels.ROW_KEY)
    heads = kernels.Heads(query=2, kv=1, dim=16, block_tokens=4)
    tilings = (kernels.DEFAULT_TILING, replace(kernels.DEFAULT_TILING, tile_tokens=32))
    seconds = iter([1.0, 3.0, 2.0, 4.0, 1.0, 5.0, 6.0])

    def timed(work: Callable[[], object]) -> float:
        work()
        return next(seconds)

    kernels.measure_all(
        kept,
        torch.device("cpu"),
        replace(H200, num_sms=1),
        timed,
        heads=heads,
        decodes=((2, 6, 9),),
        prefills=(5,),
        tilings=tilings,
        dtype=torch.float32,
    )
    script.draw_report(result, picture, kernels.draw)

    rows = json.loads(result.read_text())["rows"]
    assert [(r["kernel"], r["splits"], r["tile_tokens"]) for r in rows] == [
        ("prefill", 1, 1),
        ("decode", 2, 128),
        ("decode", 1, 128),
        ("decode", 4, 128),
        ("decode", 2, 32),
        ("decode", 1, 32),
        ("decode", 4, 32),
    ]
    assert [(r["splits"], r["tile_tokens"]) for r in kernels.best_rows(rows)] == [(1, 1), (2, 128), (2, 32)]
    assert picture.stat().st_size > 1000
