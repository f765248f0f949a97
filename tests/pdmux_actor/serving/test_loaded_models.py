"""Where models that sleep and models that serve share one memory, those that serve come first."""

import queue

import pytest

from pdmux_actor.errors import ModelTooLarge
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.scheduling.events import AttachModel, RemoveModel
from pdmux_actor.serving.commands import (
    Answered,
    Asleep,
    CallFailed,
    LoadModelCommand,
    RemoveModelCommand,
    answered,
)
from pdmux_actor.serving.loaded_models import LoadedModels
from profiler.gpus.h100 import DEVICE as H100
from profiler.roofline import RooflineLatency


class CrowdedExecutor(SimulatedExecutor):
    """A model that is read needs the memory of those that sleep."""

    def load_model(self, source, **changes):
        if self._asleep:
            raise ModelTooLarge(model=source.model, reason="too large", remedy="make room")
        return super().load_model(source, **changes)


class NoInbox:
    """Attaches and detaches as the engine's loop does."""

    def __init__(self, executor):
        self.executor = executor
        self.loaded_models = None

    def put(self, event):
        match event:
            case AttachModel(info=info):
                self.executor.attach_model(info, None)
            case RemoveModel(model=model):
                self.executor.detach_model(model)
                self.loaded_models.on_detached(model)


@pytest.fixture
def make_loaded_models(checkpoint):
    def make(*, memory_is_host):
        executor = CrowdedExecutor(
            device=H100, latency=RooflineLatency(H100), total_blocks=1000, block_bytes=16384, clock=VirtualClock()
        )
        executor.memory_is_host = memory_is_host
        sent = queue.SimpleQueue()
        sender = type("Sender", (), {"send": staticmethod(sent.put)})
        inbox = NoInbox(executor)
        inbox.loaded_models = loaded_models = LoadedModels(executor, inbox, sender, host_memory_bytes=1 << 30)

        def order(command):
            """All that is told until its answer."""
            loaded_models.order(command)
            told = [sent.get(timeout=60)]
            while not isinstance(told[-1], Answered | CallFailed):
                told.append(sent.get(timeout=60))
            return told

        return lambda model: order(LoadModelCommand(1, model, str(checkpoint), 100)), order

    return make


def test_loaded_models__sleepers_in_the_memory_that_a_model_needs__give_way(make_loaded_models):
    load, order = make_loaded_models(memory_is_host=True)
    load("a")
    asleep, _ = order(RemoveModelCommand(2, "a", sleep=True))
    assert [s.model for s in asleep.models] == ["a"]

    told = load("b")

    assert told[0] == Asleep(())
    assert isinstance(told[1], Answered)


def test_loaded_models__sleepers_in_another_memory__stay_and_wake(make_loaded_models):
    load, order = make_loaded_models(memory_is_host=False)
    load("a")
    order(RemoveModelCommand(2, "a", sleep=True))

    (failed,) = load("b")
    assert isinstance(failed, CallFailed)
    woken = load("a")
    assert woken[0] == Asleep(())
    assert isinstance(woken[1], Answered)


def test_loaded_models__removal_of_a_sleeper__frees_its_host_memory(make_loaded_models):
    load, order = make_loaded_models(memory_is_host=False)
    load("a")
    order(RemoveModelCommand(2, "a", sleep=True))

    assert order(RemoveModelCommand(3, "a")) == [Asleep(()), answered(3, None)]
