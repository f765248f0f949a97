"""Goodput searches on a GPU: their engines, runs and rows, on a tiny model in Triton's interpreter."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cuda_rig import make_cuda_rig
from engines.engine_session import EngineSession
from gpu import goodput, script, shared
from gpu.random_models import SHAPES, random_model
from gpu.script import KeptRows
from load.request_times import TimedRequest
from search.goodput import RatePlan

from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.settings import SchedulerSettings

TINY_SCALE = 100.0  # divides the lengths of ShareGPT
SLOW = RatePlan(
    first_per_s=50.0,
    window_s=0.01,
    max_runs=1,
    least_requests=2,
    tbt_s=60.0,
    ttft_s=60.0,
    ttft_s_per_kilotoken=0.0,
    tail_s=60.0,
)


def tiny_executor() -> TorchCudaExecutor:
    executor = make_cuda_rig().executor
    executor.device = replace(executor.device, partition_granularity_sms=2)
    return executor


@pytest.fixture
def options() -> argparse.Namespace:
    parsed = goodput.arguments().parse_args(["--model", "tiny", "--policy", "mux", "--max-runs", "1"])
    parsed.scale, parsed.window_s, parsed.tbt_s, parsed.ttft_s = TINY_SCALE, 0.01, 60.0, 60.0
    return parsed


def test_goodput__two_policies__one_engine_for_both_and_one_for_each_other_budget(
    options: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, picture = tmp_path / "goodput.json", tmp_path / "goodput.png"
    monkeypatch.setattr(goodput, "FIRST_GUESSES", {"sharegpt": (50.0, 2)})
    monkeypatch.setattr(goodput, "MORE_RUNS", 0)
    monkeypatch.setattr(goodput, "BUDGETS", (32, 16))
    options.policy = ["mux", "chunked_prefill"]
    opened = []

    def open_executor() -> TorchCudaExecutor:
        opened.append(1)
        return tiny_executor()

    for resume in (False, True):
        kept = KeptRows(result, goodput.ROW_KEY, resume=resume)
        goodput.measure_all(kept, options, open_executor, dtype="float32")
        assert kept.failures == {}
    script.draw_report(result, picture, goodput.draw)

    rows = json.loads(result.read_text())["rows"]
    assert [(r["policy"], r["chunk_budget_tokens"], r["goodput_per_s"]) for r in rows] == [
        ("mux", 32, 50.0),
        ("chunked_prefill", 32, 50.0),
        ("chunked_prefill", 16, pytest.approx(55.0)),  # it had to beat the other budget
    ]
    assert [r["chunk_budget_tokens"] for r in goodput.best_rows(rows)] == [32, 16]
    assert len(opened) == 2
    assert picture.stat().st_size > 1000


def test_session__run_with_a_tail__ends_early_and_judges_what_came(tiny_session: EngineSession) -> None:
    def request(name: str, at_s: float, ttft_s: float) -> TimedRequest:
        sampling = SamplingParams(max_tokens=10_000, temperature=0.0, ignore_eos=True)
        slo = Slo(ttft_s=ttft_s, tbt_s=60.0)
        asked = GenerateRequest(request_id=name, model="tiny", prompt_token_ids=(1, 2, 3), sampling=sampling, slo=slo)
        return TimedRequest(at_s, asked)

    # With a place for two: the others' first tokens never come, one of them would not have been due.
    outcome = tiny_session.run(
        [request("a", 0.0, 60.0), request("b", 0.0, 60.0), request("late", 0.0, 0.01), request("early", 0.0, 600.0)],
        tail_s=8.0,  # interpreted kernels
    )

    by_name = {len(r.token_times_s) > 0: r for r in outcome.requests}
    assert len(outcome.requests) == 3
    assert not outcome.gave_up
    assert outcome.gap_attainment == 1.0
    assert outcome.ttft_attainment == pytest.approx(2 / 3)
    assert by_name[True].num_tokens_wanted == len(by_name[True].token_times_s) < 10_000


@pytest.fixture
def tiny_session() -> Iterator[EngineSession]:
    executor = tiny_executor()
    loaded = random_model(
        "tiny",
        device=torch.device("cpu"),
        block_bytes=executor.block_bytes,
        dtype="float32",
        operators=TritonOperators(),
    )
    executor.hold(loaded)
    session = EngineSession(
        checkpoints={},
        policy="prefill_first",
        settings=SchedulerSettings(max_running_sequences=2),
        executor=executor,
        held=(loaded.info,),
    )
    session.wait_until_attached()
    yield session
    session.close()


class TinyGpu:
    """Two halves of nothing."""

    def open(self, half: int | None) -> TorchCudaExecutor:
        executor = tiny_executor()
        if half is not None:
            executor.device = replace(executor.device, num_sms=2)
            executor._sms = dict.fromkeys(Lane, 2)
        return executor


def test_shared__two_tiny_models__both_systems_and_the_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, picture = tmp_path / "shared.json", tmp_path / "shared.png"
    monkeypatch.setitem(_writable_shapes(monkeypatch), "tiny-2", SHAPES["tiny"])
    kept = KeptRows(result, shared.ROW_KEY)

    shared.measure_all(
        kept, TinyGpu(), SLOW, ["mux"], popularity={"tiny": 1, "tiny-2": 1}, scale=TINY_SCALE, dtype="float32"
    )
    script.draw_report(result, picture, shared.draw)

    rows = json.loads(result.read_text())["rows"]
    assert [(row["system"], row["sms"]) for row in rows] == [("shared", 4), ("half: tiny", 2), ("half: tiny-2", 2)]
    assert shared.gains(rows) == {"mux": 1.0}  # every system bore the only rate that was tried
    assert picture.stat().st_size > 1000


def _writable_shapes(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    from gpu import random_models

    shapes = dict(SHAPES)
    monkeypatch.setattr(random_models, "SHAPES", shapes)
    return shapes


def test_shared_requests__popularity_1_to_4__counts_and_arrivals_are_those_of_the_halves() -> None:
    plan = replace(SLOW, least_requests=50)
    workload = goodput.WORKLOADS["sharegpt"]
    both = shared.requests_of(("llama-3-8b", "llama-3-1b"), shared.POPULARITY, plan, workload, 10.0, 0)
    alone = shared.requests_of(("llama-3-1b",), shared.POPULARITY, plan, workload, 10.0, 0)

    assert (len(both), len(alone)) == (50, 40)
    assert [r for r in both if r.request.model == "llama-3-1b"] == alone
    assert len(alone) / alone[-1].at_s == pytest.approx(8.0, rel=0.01)
