import asyncio
import random

import pytest
from scripted_engine import step, submitted

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Cancel, Credit, Generate

# ---- streams ----


async def test_unit__request__streams_text_and_ends(leased, make_request, fake_engine, until):
    _, peer = leased
    peer.send(Generate(stream=3, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)
    assert fake_engine.requests[request_id].prompt_token_ids == (1, 2, 3)

    fake_engine.emit(step(request_id, "he"))
    fake_engine.emit(step(request_id, "y", FinishReason.LENGTH))
    await peer.until_finished(3)

    assert peer.text(3) == "hey"
    assert peer.deltas[3][-1].finish is FinishReason.LENGTH


async def test_unit__model_not_here__retryable_failure(leased, make_request):
    _, peer = leased

    peer.send(Generate(stream=1, request=make_request(model="other")))
    await peer.until_finished(1)

    (delta,) = peer.deltas[1]
    assert (delta.finish, delta.retryable) == (FinishReason.ERROR, True)
    assert "'other' is not ready" in delta.error


async def test_unit__request_refused_by_engine__is_not_retryable(leased, make_request, fake_engine, until):
    _, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    fake_engine.emit(step(request_id, finish=FinishReason.ERROR, error="too long; shorten it"))
    await peer.until_finished(1)

    assert (peer.deltas[1][-1].error, peer.deltas[1][-1].retryable) == ("too long; shorten it", False)


async def test_unit__stop_string__ends_at_once_and_frees_the_sequence(leased, make_request, fake_engine, until):
    _, peer = leased
    peer.send(Generate(stream=1, request=make_request(stop=("STOP",))))
    (request_id,) = await submitted(fake_engine, until)

    fake_engine.emit(step(request_id, "abST"))
    fake_engine.emit(step(request_id, "OPcd"))
    fake_engine.emit(step(request_id, "ef"))
    await peer.until_finished(1)

    assert peer.text(1) == "ab"
    assert peer.deltas[1][-1].finish is FinishReason.STOP
    assert peer.token_ids(1) == [ord(c) - 33 for c in "abSTOP"]
    await until(lambda: not fake_engine.requests)


async def test_unit__engine_dies__every_stream_ends_once_and_unit_is_ill(leased, make_request, fake_engine, until):
    unit, peer = leased
    peer.send(*(Generate(stream=i, request=make_request(f"r{i}"), credit=i) for i in range(5)))
    for request_id in await submitted(fake_engine, until, 5):
        fake_engine.emit(step(request_id, "a"))
    assert unit.is_healthy()

    fake_engine.die()
    await peer.until_finished(*range(5))

    assert not unit.is_healthy()
    for i in range(5):
        assert [d.finish for d in peer.deltas[i] if d.finish] == [FinishReason.ERROR]
        assert peer.deltas[i][-1].retryable
        assert peer.text(i) == "a"
    peer.send(Generate(stream=9, request=make_request("late")))
    await peer.until_finished(9)
    assert peer.deltas[9][0].retryable


async def test_unit__engine_stalls__is_not_ready_tells_gateways_and_keeps_its_streams(
    leased, make_request, fake_engine, until, phases
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    fake_engine.stalled = True
    assert phases(unit) == {"tiny": "stalled"}
    assert unit.is_healthy(), "it may come to itself"
    await peer.until_ping(stalled=True)

    fake_engine.stalled = False
    await peer.until_ping(stalled=False)
    fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))
    await peer.until_finished(1)
    assert phases(unit) == {"tiny": "ready"}
    assert peer.text(1) == "a"


async def test_unit__drain__opens_no_more_and_waits_for_the_rest(leased, make_request, fake_engine, until, phases):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    assert not await unit.drain(timeout_s=0.01)
    assert phases(unit) == {"tiny": "draining"}
    peer.send(Generate(stream=2, request=make_request()))
    await peer.until_finished(2)
    assert peer.deltas[2][0].retryable

    draining = asyncio.create_task(unit.drain(timeout_s=10))
    fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))
    assert await draining
    await peer.until_finished(1)
    assert peer.deltas[1][-1].finish is FinishReason.LENGTH


async def test_unit__stopped_with_open_streams__tells_them_before_it_closes(leased, make_request, fake_engine, until):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)

    await unit.stop()
    await peer.until_finished(1)

    assert (peer.deltas[1][-1].finish, peer.deltas[1][-1].retryable) == (FinishReason.ERROR, True)
    assert await peer.next() is None


@pytest.mark.parametrize("seed", range(30))
async def test_unit__random_history__every_stream_ends_exactly_once(
    seed, leased, make_request, make_lease, fake_engine, until
):
    """Tokens, stop strings, finishes, cancels, credit, a model that leaves, and at last the engine's death, in any
    order. The peer asserts that Deltas count up.
    """
    unit, peer = leased
    rng = random.Random(seed)
    cancelled, opened, version = set(), 0, 1
    for _ in range(120):
        match rng.choice(["open", "open", "tokens", "tokens", "finish", "cancel", "credit", "lease", "yield"]):
            case "open":
                request = make_request(f"r{rng.randint(0, 3)}", stop=("ab",))
                peer.send(Generate(stream=opened, request=request, credit=rng.randint(0, 2)))
                opened += 1
            case "tokens" if fake_engine.requests:
                chosen = rng.sample(list(fake_engine.requests), rng.randint(1, len(fake_engine.requests)))
                fake_engine.emit(*(step(r, rng.choice(["a", "b", "cc", ""])) for r in chosen))
            case "finish" if fake_engine.requests:
                reason = rng.choice([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR])
                fake_engine.emit(step(rng.choice(list(fake_engine.requests)), "a", reason))
            case "cancel" if opened:
                stream = rng.randrange(opened)
                cancelled.add(stream)
                peer.send(Cancel(stream=stream))
            case "credit" if opened:
                peer.send(Credit(stream=rng.randrange(opened), deltas=1))
            case "lease" if rng.random() < 0.2:
                version += 1
                unit.apply_lease(make_lease(version, *rng.choice([(), ("tiny",), ("tiny",)])))
            case _:
                await asyncio.sleep(0.001 * rng.randint(0, 2))
    peer.send(Generate(stream=opened, request=make_request(model="absent")))
    await peer.until_finished(opened)  # the unit has read everything before it
    if rng.random() < 0.5:
        fake_engine.die()
    else:
        await unit.stop()

    await peer.until_finished(*(i for i in range(opened) if i not in cancelled))

    for deltas in peer.deltas.values():
        assert all(delta.finish is None for delta in deltas[:-1])
        assert "ab" not in "".join(delta.text for delta in deltas)
    assert all(peer.deltas[i][-1].finish is not None for i in range(opened) if i not in cancelled)


# ---- what one request breaks, it breaks for itself ----


async def test_unit__tokens_of_one_stream_cannot_be_handled__ends_that_stream_and_no_other(
    leased, make_request, fake_engine, until
):
    unit, peer = leased
    peer.send(
        Generate(stream=1, request=make_request(sampling={"logprobs": 2})), Generate(stream=2, request=make_request())
    )
    ill, well = await submitted(fake_engine, until, count=2)

    fake_engine.emit(step(ill, "a"), step(well, "b"))  # no log-probabilities, although they were asked for
    fake_engine.emit(step(well, "c", FinishReason.LENGTH))
    await peer.until_finished(1, 2)

    last = peer.deltas[1][-1]
    assert (last.finish, last.retryable, "log has the traceback" in last.error) == (FinishReason.ERROR, False, True)
    assert peer.text(2) == "bc"
    assert ("abort", ill) in fake_engine.calls
    assert unit.is_healthy()


async def test_unit__request_that_cannot_be_opened__is_answered_and_its_connection_stays(leased, make_request, until):
    unit, peer = leased

    peer.send(
        Generate(stream=1, request=make_request(output_token_ids=(-1,))), Generate(stream=2, request=make_request())
    )
    await peer.until_finished(1)
    await until(lambda: len(unit._streams) == 1)

    (delta,) = peer.deltas[1]
    assert (delta.finish, delta.retryable) == (FinishReason.ERROR, False)


async def test_unit__engine_dies_under_a_request__says_so_and_not_of_one_that_came_later(
    leased, make_request, fake_engine, until
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)
    fake_engine._alive = False
    peer.send(Generate(stream=2, request=make_request()))
    await peer.until_finished(2)

    fake_engine.die()
    await peer.until_finished(1)

    assert [(peer.deltas[i][-1].retryable, peer.deltas[i][-1].engine_died) for i in (1, 2)] == [
        (True, True),
        (True, False),
    ]
    assert not unit.is_healthy()
