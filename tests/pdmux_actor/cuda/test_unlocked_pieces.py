"""Host memory of models that have woken: it is unlocked piece by piece, while no launch could be held up by that."""

import mmap
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import CpuLanes, make_cuda_rig

from pdmux_actor.executor import host_copy
from pdmux_actor.executor.cuda import model_loading
from pdmux_actor.executor.cuda.model_loading import AsleepModels
from pdmux_actor.executor.host_copy import HostRegion

PIECE_BYTES = 4 * mmap.PAGESIZE
MOST_BYTES = 1 << 30


@pytest.fixture
def rig(tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> CpuRig:
    """Has a model that slept, and another one."""
    monkeypatch.setattr(host_copy, "PIECE_BYTES", PIECE_BYTES)
    made = make_cuda_rig()
    for model in ("llama", "qwen3"):
        made.load(model, tiny_checkpoints[model], "float32")
    made.executor.sleep_model("llama", MOST_BYTES)
    made.executor.detach_model("llama")
    made.wake("llama")
    return made


def test_wait__model_has_woken__unlocks_a_piece_between_two_looks(rig: CpuRig) -> None:
    executor, lanes = rig.executor, rig.executor._lanes
    num_pieces, unpin, now_s = len(lanes.pinned), lanes.unpin, 0.0
    assert num_pieces > 3  # whoever waits for the model does not wait for this

    def slow(memory: torch.Tensor) -> None:
        nonlocal now_s
        now_s += 1.0
        unpin(memory)

    lanes.unpin, executor.now = slow, lambda: now_s
    assert executor.wait(3.0) == ()
    assert len(lanes.pinned) == num_pieces - 3
    executor.wake()
    executor.wait(None)
    assert len(lanes.pinned) == num_pieces - 3


def test_wait__launch_in_flight__unlocks_nothing(rig: CpuRig) -> None:
    lanes, seen = rig.executor._lanes, []

    class Running:
        def query(self) -> bool:
            seen.append(len(lanes.pinned))
            return len(seen) == 5

    num_pieces = len(lanes.pinned)
    lanes.record = lambda stream: Running()
    rig.prefill([rig.sequence("qwen3", make_prompt(5), 1)])

    assert seen == [num_pieces] * 5


def test_sleep_model__memory_of_another_is_locked_yet__is_let_go_before_room_is_looked_for(
    rig: CpuRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, locked = rig.executor._lanes, []
    assert lanes.pinned
    monkeypatch.setattr(model_loading, "check_host_room", lambda *arguments: locked.append(len(lanes.pinned)))

    rig.executor.sleep_model("qwen3", MOST_BYTES)

    assert locked == [0]


def test_forget_sleeper__engine_rests__is_woken_to_unlock_its_memory(rig: CpuRig) -> None:
    executor = rig.executor
    while executor._loading.unlock_one():
        pass
    executor.sleep_model("qwen3", MOST_BYTES)

    executor.forget_sleeper("qwen3")

    assert executor.wait(None) == ()
    assert executor._lanes.pinned
    assert executor._loading.unlock_one()


def test_forget__rank_that_turns_no_loop__unlocks_at_once(rig: CpuRig) -> None:
    lanes, held = CpuLanes(), rig.executor._attached["qwen3"]
    asleep = AsleepModels(lanes, unlocks_at_once=True)
    asleep.put(held.info, held.decoder, MOST_BYTES)
    assert lanes.pinned

    asleep.forget("qwen3")

    assert lanes.pinned == []


def test_region__piece_is_let_go__its_pages_go_back_and_those_before_it_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "PIECE_BYTES", PIECE_BYTES)
    region = HostRegion(2 * PIECE_BYTES + 100, CpuLanes())
    region.take(torch.ones(2 * PIECE_BYTES + 100, dtype=torch.uint8))

    assert [region.let_go_of_a_piece() for _ in range(2)] == [True, True]

    assert int(region.whole[PIECE_BYTES:].sum()) == 0  # what the system gives anew
    assert int(region.whole[:PIECE_BYTES].sum()) == PIECE_BYTES
    assert [region.let_go_of_a_piece() for _ in range(2)] == [True, False]
