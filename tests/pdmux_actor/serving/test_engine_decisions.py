"""The decision log on its way out of a real engine process."""

import os
import signal
import time
from itertools import pairwise

import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import EngineDied
from pdmux_actor.scheduling.decision import DecisionKind
from pdmux_actor.serving.command_intake import MAX_REQUEST_IDS


@pytest.fixture
async def engine(engine_settings, make_assignment):
    engine = NativeEngine(engine_settings, start_timeout_s=150)
    try:
        await engine.start()
        await engine.add_model(make_assignment("a"))
        yield engine
    finally:
        await engine.stop()


async def serve(engine, make_request, *request_ids, max_tokens=20):
    for request_id in request_ids:
        engine.submit(make_request(request_id, model="a", max_tokens=max_tokens))
    left = set(request_ids)
    async for events in engine.events():
        left -= {event.request_id for event in events if event.finish is not None}
        if not left:
            return


async def test_decisions__after_some_requests__are_the_engines_in_order(engine, make_request):
    await serve(engine, make_request, "x", "y")

    before_s = time.time()
    excerpt = await engine.decisions(1000)

    decisions = excerpt.decisions
    assert [d.index for d in decisions] == list(range(len(decisions)))
    assert {i for d in decisions for i in d.request_ids} == {"x", "y"}
    launches = [d for d in decisions if d.lane is not None]
    assert all(d.now_s <= d.started_s < d.finished_s <= excerpt.now_s for d in launches)
    assert sum(d.num_decoding * d.steps for d in launches if d.kind is not DecisionKind.PREFILL) >= 38
    assert all(a.now_s <= b.now_s for a, b in pairwise(decisions))
    assert before_s <= excerpt.unix_s <= time.time()


@pytest.mark.parametrize("last", [0, 1, 5])
async def test_decisions__last__are_the_newest(engine, make_request, last):
    await serve(engine, make_request, "x")

    everything = (await engine.decisions(10**9)).decisions
    newest = (await engine.decisions(last)).decisions

    assert len(everything) > 5
    assert newest == everything[len(everything) - last :]


async def test_decisions__large_batch__says_its_size_but_not_every_request(engine, make_request):
    await serve(engine, make_request, *(f"r{i}" for i in range(30)))

    largest = max((await engine.decisions(1000)).decisions, key=lambda d: d.num_decoding)

    assert largest.num_decoding > MAX_REQUEST_IDS
    assert len(largest.request_ids) == MAX_REQUEST_IDS


async def test_decisions__engine_killed__raises(engine):
    os.kill(engine.pid, signal.SIGKILL)

    with pytest.raises(EngineDied):
        await engine.decisions(1)
