"""The benchmarks of gaps at fixed rates and of the host's time, on a tiny model in Triton's interpreter."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu import floors, gaps, host_slice, host_step, script, step_gaps
from gpu.script import KeptRows
from test_gpu_benchmarks import LLAMA_8B, tiny_executor

from profiler.gpus.h200 import DEVICE as H200


def test_gaps__tiny_model__a_row_for_each_rate_and_policy_with_the_same_arrivals(tmp_path: Path) -> None:
    result, picture = tmp_path / "gaps.json", tmp_path / "gaps.png"

    gaps.measure_all(
        tiny_executor(),
        KeptRows(result, gaps.ROW_KEY),
        model="tiny",
        rates=(4.0,),
        policies=("mux", "chunked_prefill"),
        seconds=0.8,
        tokens=(3, 2),
        dtype="float32",
    )
    script.draw_report(result, picture, gaps.draw)

    rows = json.loads(result.read_text())["rows"]
    assert [(row["rate_per_s"], row["policy"]) for row in rows] == [(4.0, "mux"), (4.0, "chunked_prefill")]
    assert rows[0]["requests"] == rows[1]["requests"] > 0
    assert all(row["answered"] == row["requests"] for row in rows)
    assert all(0 < row["gap_p50_s"] <= row["gap_p99_s"] and row["ttft_p50_s"] > 0 for row in rows)
    assert picture.stat().st_size > 1000


def test_host_step__any_batch__times_of_what_the_host_does(tmp_path: Path) -> None:
    result, picture = tmp_path / "host_step.json", tmp_path / "host_step.png"
    KeptRows(result, host_step.ROW_KEY).attempt({"batch": 3, "tokens": 40}, lambda: host_step.measure(3, 40, 5))
    script.draw_report(result, picture, host_step.draw)

    (row,) = json.loads(result.read_text())["rows"]
    assert all(0 < row[name] < 1e6 for name in ("us", "drawn_us", "joined_us", "new_us"))
    assert picture.stat().st_size > 1000


def test_host_slice__any_batch__times_of_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_slice, "_MODEL", "tiny")
    monkeypatch.setattr(host_slice, "_WARM_UPS", 1)
    result, picture = tmp_path / "host_slice.json", tmp_path / "host_slice.png"
    KeptRows(result, host_slice.ROW_KEY).attempt({"prompts": 2, "tokens": 3}, lambda: host_slice.measure(2, 3, 2))
    script.draw_report(result, picture, host_slice.draw)

    (row,) = json.loads(result.read_text())["rows"]
    assert (row["layers"], row["turns"]) == (2, 2)
    assert row["eager_us"] > row["layer_us"] > 0
    assert row["eager_us"] > row["captured_us"] > 0
    assert picture.stat().st_size > 1000


def test_step_gaps__any_batch__a_row_for_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_gaps, "_PROMPT_TOKENS", 32)
    monkeypatch.setattr(step_gaps, "_ROUNDS", 1)
    result, picture = tmp_path / "step_gaps.json", tmp_path / "step_gaps.png"
    kept = KeptRows(result, step_gaps.ROW_KEY)
    step_gaps.keep(kept, lambda: step_gaps.measure(3, 1.0, 2))
    script.draw_report(result, picture, step_gaps.draw)

    rows = json.loads(result.read_text())["rows"]
    assert [(row["early"], row["steps"]) for row in rows] == [(False, 2), (True, 2)]
    assert all(row["most_idle_us"] >= row["idle_us"] >= 0 for row in rows)
    assert picture.stat().st_size > 1000


def test_step_gaps__steps_handed_out_early__the_device_does_not_wait_before_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_gaps, "_PROMPT_TOKENS", 32)

    one_by_one, early = (step_gaps.idle_s(3, 0.02, 34, early=on) for on in (False, True))

    assert all(waited_s > 0 for waited_s in one_by_one)
    assert sum(waited_s == 0 for waited_s in early) > 17


def test_prefill_floor__short_prompt__is_the_reading_of_the_weights() -> None:
    assert floors.prefill_floor_s(LLAMA_8B, H200, 64) == pytest.approx(3.5e-3, rel=0.02)
