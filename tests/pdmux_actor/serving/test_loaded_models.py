"""Where models that sleep and models that serve share one memory, those that serve come first."""

import queue
import threading
import time
from unittest.mock import Mock

import pytest

from pdmux_actor.errors import InvalidStructuredOutput, ModelLoadError, ModelTooLarge
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.messages import StructuredKind, StructuredOutput
from pdmux_actor.scheduling.events import AttachModel, RemoveModel
from pdmux_actor.serving.commands import (
    Answered,
    Asleep,
    CallFailed,
    GraphsCaptured,
    LoadModelCommand,
    RemoveModelCommand,
    answered,
)
from pdmux_actor.serving.loaded_models import LoadedModels
from pdmux_actor.serving.model_forms import ModelForms
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
        self.holds_back = False
        self.ready = []
        self.removed = []

    def put(self, event):
        match event:
            case AttachModel(info=info, on_ready=on_ready, on_warming=on_warming):
                try:
                    self.executor.attach_model(info, None)
                except ModelLoadError as error:
                    event.on_failed(error)
                    return
                if event.on_attached is not None:
                    event.on_attached()
                if on_warming is not None and self.holds_back:
                    on_warming(3, 8)
                self.ready.append(on_ready)
                if on_ready is not None and not self.holds_back:
                    on_ready()
            case RemoveModel(model=model):
                self.removed.append(model)
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


@pytest.fixture
def held_back(checkpoint):
    """Loads a model of which the engine says that it is ready when the second one is called."""
    executor = CrowdedExecutor(
        device=H100, latency=RooflineLatency(H100), total_blocks=1000, block_bytes=16384, clock=VirtualClock()
    )
    sent, inbox = queue.SimpleQueue(), NoInbox(executor)
    inbox.holds_back = True
    sender = type("Sender", (), {"send": staticmethod(sent.put)})
    inbox.loaded_models = loaded_models = LoadedModels(executor, inbox, sender, host_memory_bytes=1 << 30)

    def load(call, model):
        loaded_models.order(LoadModelCommand(call, model, str(checkpoint), 100))

    def sleep(call, model):
        loaded_models.order(RemoveModelCommand(call, model, sleep=True))

    return load, sleep, inbox.ready, sent


def test_loaded_models__model_that_is_not_ready_yet__is_answered_when_it_is_and_keeps_no_other_waiting(held_back):
    load, _, ready, sent = held_back
    load(1, "a")
    load(2, "b")
    until_s = time.monotonic() + 60
    while len(ready) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    told = drained(sent)
    assert [t for t in told if isinstance(t, GraphsCaptured)] == [GraphsCaptured("a", 3, 8), GraphsCaptured("b", 3, 8)]
    assert [t for t in told if isinstance(t, Answered)] == []

    ready[1]()
    ready[0]()

    answers = [told for told in drained(sent) if isinstance(told, Answered)]
    assert [answer.call for answer in answers] == [2, 1]


def test_loaded_models__model_that_wakes__is_answered_at_once_since_somebody_waits_for_it(held_back):
    load, sleep, ready, sent = held_back
    load(1, "a")
    until_s = time.monotonic() + 60
    while not ready:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    ready[0]()
    sleep(2, "a")

    load(3, "a")

    told = []
    while not told or told[-1] != 3:
        told += [t.call for t in [sent.get(timeout=60)] if isinstance(t, Answered)]
    assert told == [1, 2, 3]
    assert ready[1] is None


@pytest.mark.parametrize("sleeps", [False, True])
def test_loaded_models__no_room_for_launches_of_a_model__fails_that_call_and_the_next_one_works(
    make_loaded_models, monkeypatch, sleeps
):
    load, order = make_loaded_models(memory_is_host=False)
    if sleeps:
        load("a")
        order(RemoveModelCommand(2, "a", sleep=True))

    def refuse(self, info, table):
        raise ModelTooLarge(model=info.model, reason="its rows' blocks take 9 bytes", remedy="lower kv_memory")

    with monkeypatch.context() as crowded:
        crowded.setattr(CrowdedExecutor, "attach_model", refuse)
        *_, failed = load("a")

    assert (failed.call, failed.reason, failed.remedy) == (1, "its rows' blocks take 9 bytes", "lower kv_memory")
    *_, loaded = load("a")
    assert isinstance(loaded, Answered)


def test_loaded_models__base_does_not_fit_when_its_adapter_was_ordered_already__both_leave_the_adapter_first(
    checkpoint, monkeypatch
):
    executor = CrowdedExecutor(
        device=H100, latency=RooflineLatency(H100), total_blocks=1000, block_bytes=16384, clock=VirtualClock()
    )
    sent, inbox, is_ordered = queue.SimpleQueue(), NoInbox(executor), threading.Event()
    sender = type("Sender", (), {"send": staticmethod(sent.put)})
    inbox.loaded_models = loaded_models = LoadedModels(executor, inbox, sender, host_memory_bytes=1 << 30)

    def refuse(self, info, table):
        assert is_ordered.wait(60)
        raise ModelTooLarge(model=info.model, reason="too large", remedy="lower kv_memory")

    monkeypatch.setattr(CrowdedExecutor, "attach_model", refuse)
    loaded_models.order(LoadModelCommand(1, "a", str(checkpoint), 100))
    loaded_models.order(LoadModelCommand(2, "x", str(checkpoint), 100, base="a"))
    is_ordered.set()

    told = {}
    while len(told) < 2:
        answer = sent.get(timeout=60)
        if isinstance(answer, Answered | CallFailed):
            told[answer.call] = answer
    assert (type(told[1]), told[1].reason) == (CallFailed, "too large")
    assert inbox.removed == ["x", "a"]
    loaded_models.order(LoadModelCommand(3, "x", str(checkpoint), 100, base="a"))
    assert sent.get(timeout=60).reason == "its base 'a' is not on this unit"


def drained(sent):
    told = []
    while not sent.empty():
        told.append(sent.get())
    return told


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


def test_loaded_models__model_leaves__what_its_forms_were_compiled_with_goes(checkpoint, monkeypatch, make_request):
    """A unit of models that take turns would keep those of all of them."""
    executor = CrowdedExecutor(
        device=H100, latency=RooflineLatency(H100), total_blocks=1000, block_bytes=16384, clock=VirtualClock()
    )
    inbox, sent, forms = NoInbox(executor), queue.SimpleQueue(), ModelForms()
    sender = type("Sender", (), {"send": staticmethod(sent.put)})
    inbox.loaded_models = loaded_models = LoadedModels(
        executor, inbox, sender, on_loaded=forms.offer, on_left=forms.forget
    )
    compiler = Mock()
    monkeypatch.setattr("pdmux_actor.serving.model_forms._compiler", lambda offer: compiler)
    form = StructuredOutput(kind=StructuredKind.REGEX, text="a")
    loaded_models.order(LoadModelCommand(1, "a", str(checkpoint), 100))
    assert isinstance(sent.get(timeout=60), Answered)
    assert forms.compile(make_request(model="a"), form) is compiler.constraint.return_value
    loaded_models.order(RemoveModelCommand(2, "a"))
    assert sent.get(timeout=60) == answered(2, None)

    with pytest.raises(InvalidStructuredOutput, match="'a' is not on this unit"):
        forms.compile(make_request(model="a"), form)


def test_loaded_models__removal_of_a_sleeper__frees_its_host_memory(make_loaded_models):
    load, order = make_loaded_models(memory_is_host=False)
    load("a")
    order(RemoveModelCommand(2, "a", sleep=True))

    assert order(RemoveModelCommand(3, "a")) == [Asleep(()), answered(3, None)]
