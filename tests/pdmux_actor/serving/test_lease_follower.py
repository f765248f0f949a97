"""Leases that come in any order of loads, drains, sleeps and other weights, while streams open and end."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import Slo
from pdmux_actor.models.load_progress import OnProgress
from pdmux_actor.serving.lease_follower import HeldModel, LeaseFollower

MODELS = ("a", "b", "c")
DRAIN_S = 30.0  # never over in these runs: whatever waits for it hangs


@dataclass(frozen=True)
class NewLease:
    """Version of its weights by model, and which of the others may sleep."""

    weights: dict[str, int]
    asleep: frozenset[str]


@dataclass(frozen=True)
class Opens:
    model: str


@dataclass(frozen=True)
class EndsOldest:
    pass


LEASES = st.builds(
    NewLease,
    st.dictionaries(st.sampled_from(MODELS), st.integers(1, 2)),
    st.frozensets(st.sampled_from(MODELS)),
)
ACTIONS = st.tuples(
    st.one_of(LEASES, LEASES, st.builds(Opens, st.sampled_from(MODELS)), st.just(EndsOldest())),
    st.sampled_from((0, 1, 3, 20)),  # turns of the loop after it
)


def assignment(model: str, weights: int) -> ModelAssignment:
    slo = Slo(ttft_s=1.0, tbt_s=0.1)
    return ModelAssignment(model=model, source=f"/none/{model}", revision=str(weights), quota_blocks=10, slo=slo)


def as_lease(version: int, new: NewLease) -> Lease:
    held = tuple(assignment(model, weights) for model, weights in new.weights.items())
    asleep = tuple(assignment(model, 1) for model in sorted(new.asleep - new.weights.keys()))
    return Lease(version=version, models=held, policy="mux", stream_token="", asleep=asleep)


async def follow(actions: list[tuple[NewLease | Opens | EndsOldest, int]], last: NewLease) -> None:
    engine = ScriptedEngine()
    engine.host_bytes = 2
    follower = LeaseFollower(engine, lambda assignment, on_progress: None, drain_timeout_s=DRAIN_S)
    streams: list[HeldModel] = []
    leases = 0
    for action, turns in [*actions, (last, 20)]:
        match action:
            case NewLease():
                leases += 1
                follower.apply(as_lease(leases, action))
            case Opens(model):
                if (held := follower.ready(model)) is not None:
                    held.open_streams += 1
                    streams.append(held)
            case EndsOldest():
                if streams:
                    follower.stream_ended(streams.pop(0))
        for _ in range(turns):
            await asyncio.sleep(0)
    while streams:
        follower.stream_ended(streams.pop(0))
    async with asyncio.timeout(10.0):
        while not is_as_said(follower, last):  # noqa: ASYNC110 - states that set no event
            await asyncio.sleep(0.001)
    assert follower.failure is None
    await follower.stop()


def is_as_said(follower: LeaseFollower, last: NewLease) -> bool:
    held = {status.model: status.phase for status in follower.statuses() if status.phase is not ModelPhase.ASLEEP}
    revisions = {model: h.assignment.revision for model in held if (h := follower.ready(model)) is not None}
    return (
        held == dict.fromkeys(last.weights, ModelPhase.READY)
        and revisions == {model: str(weights) for model, weights in last.weights.items()}
        and {status.model for status in follower.statuses()} <= {*last.weights, *last.asleep}
    )


@settings(max_examples=500, phases=[Phase.generate])  # to shrink what hangs takes a bound's time for each try
@given(st.lists(ACTIONS, max_size=12), LEASES)
def test_leases__any_one_after_the_other__the_last_one_holds_when_streams_have_ended(actions, last):
    asyncio.run(follow(actions, last))


async def test_download__lease_names_the_model_no_more__goes_on_and_nothing_of_it_is_loaded():
    engine, may_end = ScriptedEngine(), threading.Event()

    def vocabulary(wanted: ModelAssignment, on_progress: OnProgress) -> None:
        if wanted.model == "a":
            on_progress(1, 10)
            assert may_end.wait(10.0)

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 - states that set no event
                await asyncio.sleep(0.001)

    follower = LeaseFollower(engine, vocabulary, drain_timeout_s=DRAIN_S)
    follower.apply(as_lease(1, NewLease({"a": 1}, frozenset())))
    await until(lambda: follower.statuses()[0].is_downloading)
    follower.apply(as_lease(2, NewLease({"b": 1}, frozenset())))
    await until(lambda: follower.ready("b"))
    goes_on = [s.model for s in follower.statuses() if s.is_downloading]
    may_end.set()
    await until(lambda: len(follower.statuses()) == 1)
    loaded = [call[1] for call in engine.calls if call[0] == "add"]
    follower.apply(as_lease(3, NewLease({"a": 1}, frozenset())))
    await until(lambda: follower.ready("a"))
    await follower.stop()

    assert goes_on == ["a"]
    assert loaded == ["b"]
