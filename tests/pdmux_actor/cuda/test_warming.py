"""A model that comes to a GPU: the engine's loop turns while its steps are captured, and says when they are."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import RerunCapture, make_cuda_rig

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.base import WarmingExecutor
from pdmux_actor.executor.cuda.graph_key import Step
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.scheduling.events import AttachModel, RemoveModel
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits
from profiler.roofline import RooflineLatency

CAPTURE_S = 0.02
LIMITS = LaunchLimits(batch_tokens=64, sequences=8)
NUM_CAPTURES = 2 * 4  # parts of a step, buckets


class SlowCapture(RerunCapture):
    """Time passes by its captures, and by nothing else."""

    def __init__(self) -> None:
        super().__init__(1 << 10, None)
        self.now_s = 0.0

    def __call__(self, step: Step, stream: object) -> tuple[Step, int]:
        self.now_s += CAPTURE_S
        return super().__call__(step, stream)


def open_rig() -> tuple[CpuRig, SlowCapture]:
    rig, capture = make_cuda_rig(captures_ahead=True, launch_limits=LIMITS), SlowCapture()
    rig.executor._graphs._capture = capture
    rig.executor.now = lambda: capture.now_s
    return rig, capture


def loaded(rig: CpuRig, checkpoints: Mapping[str, Path], model: str) -> ModelInfo:
    return rig.executor.load_model(ModelSource(model=model, source=str(checkpoints[model]), dtype="float32"))


class Turning:
    """An engine's loop over the rig. `ready` is who was said to be, and after how many captures."""

    def __init__(self, rig: CpuRig, capture: SlowCapture) -> None:
        self.ready: list[tuple[str, int]] = []
        self.told: list[tuple[int, int]] = []
        self.capture = capture
        self.loop, self.inbox = build_engine(
            rig.executor,
            policy="mux",
            settings=SchedulerSettings(max_batch_tokens=64, adapt_quotas=False),
            latency=RooflineLatency(rig.executor.device),
            outbox=lambda events: None,
        )

    def attach(self, info: ModelInfo, quota_blocks: int) -> None:
        ready = lambda: self.ready.append((info.model, self.capture.count))  # noqa: E731
        self.inbox.put(AttachModel(info, quota_blocks, ready, lambda *graphs: self.told.append(graphs)))


def test_wait__captures_are_left__returns_by_its_deadline_all_the_same(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig, capture = open_rig()
    info = loaded(rig, tiny_checkpoints, "llama")
    rig.executor.attach_model(info, rig_table(rig, info))
    assert capture.count == 0  # the loop is in attach_model
    assert isinstance(rig.executor, WarmingExecutor)

    assert rig.executor.wait(3 * CAPTURE_S) == ()

    assert capture.count == 3
    assert rig.executor.is_warming("llama")


def test_engine__first_model__is_ready_with_its_captures_and_the_loop_turns_meanwhile(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig, capture = open_rig()
    engine = Turning(rig, capture)
    engine.attach(loaded(rig, tiny_checkpoints, "llama"), 100)
    wait, longest_s = rig.executor.wait, 0.0

    def timed(deadline_s: float | None) -> object:
        nonlocal longest_s
        began_s = capture.now_s
        done = wait(began_s + 2 * CAPTURE_S)  # whatever the engine would wait for
        longest_s = max(longest_s, capture.now_s - began_s)
        return done

    rig.executor.wait = timed
    turns = 0
    while not engine.ready:
        engine.loop.turn()
        turns += 1
        assert turns < 50

    assert engine.ready == [("llama", NUM_CAPTURES)]
    assert list(dict.fromkeys(engine.told)) == [(done, NUM_CAPTURES) for done in range(0, NUM_CAPTURES, 2)]
    assert turns >= NUM_CAPTURES // 2
    assert longest_s <= 2 * CAPTURE_S + 1e-9
    engine.loop.act()
    assert len(engine.ready) == 1


def test_engine__model_removed_while_it_is_captured__is_said_to_be_done_with(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig, capture = open_rig()
    engine = Turning(rig, capture)
    engine.attach(loaded(rig, tiny_checkpoints, "llama"), 100)
    wait = rig.executor.wait
    rig.executor.wait = lambda deadline_s: wait(capture.now_s + CAPTURE_S)
    engine.loop.turn()
    assert not engine.ready
    engine.inbox.put(RemoveModel("llama"))

    engine.loop.turn()

    assert [model for model, _ in engine.ready] == ["llama"]


def test_engine__unit_that_serves__has_a_further_model_ready_as_soon_as_it_computes_anything(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig, capture = open_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    assert capture.count == NUM_CAPTURES
    engine = Turning(rig, capture)
    engine.attach(loaded(rig, tiny_checkpoints, "qwen2"), 100)
    engine.loop.act()
    assert engine.ready == []

    rig.prefill([rig.sequence("llama", make_prompt(5), 1)])
    wait = rig.executor.wait
    rig.executor.wait = lambda deadline_s: wait(capture.now_s)
    engine.loop.turn()

    assert engine.ready == [("qwen2", NUM_CAPTURES)]
    assert rig.executor.graph_facts["graphs_planned"] == NUM_CAPTURES  # for moments without launches


def test_engine__further_model_comes_meanwhile__the_first_is_ready_with_its_own_captures(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig, capture = open_rig()
    engine = Turning(rig, capture)
    engine.attach(loaded(rig, tiny_checkpoints, "llama"), 100)
    engine.attach(loaded(rig, tiny_checkpoints, "qwen2"), 100)
    wait = rig.executor.wait
    rig.executor.wait = lambda deadline_s: wait(capture.now_s + CAPTURE_S)

    turns = 0
    while len(engine.ready) < 2:
        engine.loop.turn()
        turns += 1
        assert turns < 50

    assert engine.ready == [("llama", NUM_CAPTURES), ("qwen2", 2 * NUM_CAPTURES)]


def rig_table(rig: CpuRig, info: ModelInfo) -> object:
    return np.zeros((50, info.geometry.blocks_per_row), dtype=np.int64)
