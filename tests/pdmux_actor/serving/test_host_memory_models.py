"""Sleepers within their budget, over an executor without tensors."""

import json
import os
from dataclasses import replace

import pytest

from pdmux_actor.errors import ModelTooLarge
from pdmux_actor.executor.ranks.rank_frames import ForgetPart, PartDone, PartFailed, SleepPart, WakePart
from pdmux_actor.executor.ranks.tensor_parallel_executor import TensorParallelExecutor
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.model_info import ModelSource
from pdmux_actor.serving.commands import LoadModelCommand
from pdmux_actor.serving.sleeping_models import Origin, SleepingModels
from profiler.gpus.h100 import DEVICE as H100
from profiler.roofline import RooflineLatency

DEVICE = replace(H100, host_copy_bytes_per_s=1000.0)


@pytest.fixture
def executor():
    return SimulatedExecutor(
        device=DEVICE, latency=RooflineLatency(DEVICE), total_blocks=1000, block_bytes=16384, clock=VirtualClock()
    )


@pytest.fixture
def attach(executor, checkpoint):
    """Returns where the weights came from, and their bytes."""

    def load(model, source=checkpoint, **changes):
        command = LoadModelCommand(call=1, model=model, source=str(source), quota_blocks=10, **changes)
        info = executor.load_model(ModelSource(model=model, source=str(source)))
        executor.attach_model(info, None)
        return Origin.of(command), info.spec.weight_bytes

    return load


def test_sleepers__within_the_budget__first_wake_is_told_by_the_device_then_by_what_it_took(executor, attach):
    origin, weight_bytes = attach("a")
    sleepers = SleepingModels(executor, weight_bytes)

    sleepers.put("a", origin)
    (told,) = sleepers.told()
    assert (told.model, told.host_bytes, told.wake_s) == ("a", weight_bytes, weight_bytes / 1000.0)

    assert sleepers.wake("a", origin).model == "a"
    assert sleepers.told() == ()
    sleepers.put("a", origin)
    assert sleepers.told()[0].wake_s != told.wake_s


def test_sleepers__over_the_budget__second_is_not_kept(executor, attach, caplog):
    (first, weight_bytes), (second, _) = attach("a"), attach("b")
    sleepers = SleepingModels(executor, 2 * weight_bytes - 1)

    sleepers.put("a", first)
    sleepers.put("b", second)

    assert [s.model for s in sleepers.told()] == ["a"]
    assert [(r.model, "raise pools[].host_memory" in r.reason) for r in caplog.records] == [("b", True)]
    assert sleepers.wake("b", second) is None


def test_sleepers__weights_or_their_files_changed__are_read_anew(executor, attach, checkpoint, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads((checkpoint / "config.json").read_text())))
    origin, weight_bytes = attach("a", tmp_path)
    sleepers = SleepingModels(executor, weight_bytes)

    sleepers.put("a", origin)
    assert sleepers.wake("a", Origin.of(replace_dtype(origin.command, "float16"))) is None
    assert sleepers.told() == ()

    sleepers.put("a", origin)
    os.utime(config, (1, 1))
    assert sleepers.wake("a", Origin.of(origin.command)) is None
    assert sleepers.told() == ()


def test_sleepers__no_room_on_the_device__sleep_on(executor, attach, monkeypatch):
    origin, weight_bytes = attach("a")
    sleepers = SleepingModels(executor, weight_bytes)
    sleepers.put("a", origin)

    def wake_model(model):
        raise ModelTooLarge(model=model, reason="too large", remedy="none")

    monkeypatch.setattr(executor, "wake_model", wake_model)
    with pytest.raises(ModelTooLarge):
        sleepers.wake("a", origin)

    assert [s.model for s in sleepers.told()] == ["a"]
    assert sleepers.forget_all()
    assert not sleepers.forget_all()


class ShortOfMemory:
    """A RankLink of two ranks, of which the other has no room to wake a model in."""

    num_ranks = 2

    def __init__(self):
        self.asleep = set()

    def tell(self, frame):
        pass

    def call(self, frame, meanwhile):
        match frame:
            case SleepPart(model=model):
                self.asleep.add(model)
            case WakePart(model=model) if model not in self.asleep:
                return (PartFailed("KeyError", f"KeyError: {model!r}", ""),), meanwhile()
            case WakePart():
                return (PartFailed("ModelTooLarge", "it takes more than is free", "free some"),), meanwhile()
            case ForgetPart(model=model):
                self.asleep.discard(model)
        return (PartDone(0),), meanwhile()


def test_sleepers__one_of_two_ranks_has_no_room__is_read_anew_the_next_time(executor, attach):
    """The other rank has woken by then, and neither has it in host memory any more."""
    origin, weight_bytes = attach("a")
    sleepers = SleepingModels(TensorParallelExecutor(executor, ShortOfMemory()), 2 * weight_bytes)
    sleepers.put("a", origin)
    with pytest.raises(ModelTooLarge):
        sleepers.wake("a", origin)

    assert sleepers.wake("a", origin) is None
    assert sleepers.told() == ()


def replace_dtype(command, dtype):
    return LoadModelCommand(call=2, model=command.model, source=command.source, quota_blocks=10, dtype=dtype)
