"""A unit whose request names another one for its prompt's KV fetches it there; whatever fails costs time only."""

import asyncio

import pytest
from scripted_engine import KV_ROW_TOKENS, ScriptedEngine, step, submitted

from pdmux_actor.kv.prefix_kv import PromptStart
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving import kv_transfers
from pdmux_actor.serving.frames import Cancel, Generate

PROMPT = tuple(range(1, 3 * KV_ROW_TOKENS + 2))


@pytest.fixture
async def source(make_unit, make_lease, until, phases):
    """A unit that has computed PROMPT."""
    engine = ScriptedEngine()
    engine.cached_rows[PROMPT] = 3
    unit = await make_unit(engine)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    return unit, engine


@pytest.fixture
async def silent():
    """The endpoint of somebody who listens and says nothing."""

    async def take(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def answered(peer, engine, until, request) -> list:
    peer.send(Generate(stream=1, request=request))
    (request_id,) = await submitted(engine, until)
    assert engine.requests[request_id].kv_from == ""
    engine.emit(step(request_id, "hey", FinishReason.LENGTH))
    await peer.until_finished(1)
    assert peer.text(1) == "hey"
    return peer.deltas[1]


async def test_request__its_prompt_was_computed_elsewhere__waits_for_the_kv(
    leased, source, fake_engine, make_request, until
):
    _, peer = leased
    unit, _ = source

    request = make_request(prompt_token_ids=PROMPT, kv_from=unit.endpoint)
    first, *_ = await answered(peer, fake_engine, until, request)

    assert fake_engine.cached_rows == {PROMPT: 3}
    assert first.kv_moved.num_bytes == 3 * 8
    assert first.kv_moved.seconds > 0
    assert first.kv_moved.why_not_all == ""


async def test_request__all_of_it_is_here__asks_nobody(leased, fake_engine, make_request, until):
    _, peer = leased
    fake_engine.cached_rows[PROMPT] = 3

    first, *_ = await answered(peer, fake_engine, until, make_request(prompt_token_ids=PROMPT, kv_from="nowhere"))

    assert (first.kv_moved.num_bytes, first.kv_moved.why_not_all) == (0, "")


async def test_request__a_part_is_here__fetches_the_rest(leased, source, fake_engine, make_request, until):
    _, peer = leased
    fake_engine.cached_rows[PROMPT] = 2
    request = make_request(prompt_token_ids=PROMPT, kv_from=source[0].endpoint)

    first, *_ = await answered(peer, fake_engine, until, request)

    assert first.kv_moved.num_bytes == 8


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "nowhere", "127.0.0.1:x", "[::1]:1"])
async def test_request__nobody_is_there__is_computed(leased, fake_engine, make_request, until, endpoint):
    _, peer = leased

    first, *_ = await answered(peer, fake_engine, until, make_request(prompt_token_ids=PROMPT, kv_from=endpoint))

    assert first.kv_moved.why_not_all
    assert fake_engine.cached_rows == {}


async def test_request__the_other_has_other_weights_or_no_more__is_computed(
    leased, source, fake_engine, make_request, make_lease, make_assignment, until, phases
):
    _, peer = leased
    unit, engine = source
    engine.cached_rows[PROMPT] = 1
    request = make_request(prompt_token_ids=PROMPT, kv_from=unit.endpoint)

    first, *_ = await answered(peer, fake_engine, until, request)
    assert (first.kv_moved.num_bytes, first.kv_moved.why_not_all) == (8, "it has no more of it")

    fake_engine.cached_rows.clear()
    unit.apply_lease(make_lease(2, make_assignment("tiny", dtype="float32")))
    await until(lambda: phases(unit) == {"tiny": "ready"} and ("remove", "tiny") in engine.calls)
    peer.deltas.clear()
    first, *_ = await answered(peer, fake_engine, until, request)
    assert (first.kv_moved.num_bytes, first.kv_moved.why_not_all) == (0, "it has no more of it")


async def test_request__no_room_here__is_computed(leased, source, fake_engine, make_request, until):
    _, peer = leased
    fake_engine.takes_kv = False
    request = make_request(prompt_token_ids=PROMPT, kv_from=source[0].endpoint)

    first, *_ = await answered(peer, fake_engine, until, request)

    assert first.kv_moved.why_not_all.startswith("there is no room for it")


async def test_request__the_other_says_nothing__is_computed_after_one_step(
    leased, silent, fake_engine, make_request, until, monkeypatch
):
    monkeypatch.setattr(kv_transfers, "STEP_S", 0.05)
    _, peer = leased

    first, *_ = await answered(peer, fake_engine, until, make_request(prompt_token_ids=PROMPT, kv_from=silent))

    assert first.kv_moved.why_not_all == "a step took more than 0.05 s"


async def test_request__given_up_while_its_kv_is_fetched__never_reaches_the_engine(
    leased, silent, fake_engine, make_request, until
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request(prompt_token_ids=PROMPT, kv_from=silent)))
    peer.send(Generate(stream=2, request=make_request("other")))
    await submitted(fake_engine, until)
    peer.send(Cancel(stream=1))
    await until(lambda: any(call[0] == "abort" for call in fake_engine.calls))

    assert not unit._kv._fetches
    assert len(fake_engine.requests) == 1


async def test_unit__stops_while_kv_is_fetched__gives_the_request_back_once(
    leased, silent, fake_engine, make_request, until
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request(prompt_token_ids=PROMPT, kv_from=silent)))
    await until(lambda: unit._kv._fetches)

    await unit.stop()
    await peer.until_finished(1)

    (only,) = peer.deltas[1]
    assert (only.finish, only.retryable) == (FinishReason.ERROR, True)
    assert not fake_engine.requests


async def test_engine__dies_while_kv_is_fetched__the_request_is_given_back_and_called_nobodys_killer(
    leased, silent, fake_engine, make_request, until
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request(prompt_token_ids=PROMPT, kv_from=silent)))
    peer.send(Generate(stream=2, request=make_request("other")))
    await submitted(fake_engine, until)
    assert unit._kv._fetches

    fake_engine.die()
    for stream in (1, 2):
        await peer.until_finished(stream)

    assert [(peer.deltas[i][-1].retryable, peer.deltas[i][-1].engine_died) for i in (1, 2)] == [
        (True, False),
        (True, True),
    ]


async def test_unit__asked_for_kv_of_a_model_that_is_not_here__has_none(source):
    unit, _ = source
    async with kv_transfers.KvSource.opened(unit.endpoint, "secret") as opened:
        assert await opened.rows(PromptStart(model="other", token_ids=PROMPT), 0, ()) is None
        assert await opened.rows(PromptStart(model="tiny", token_ids=PROMPT), 0, ("else",)) is None


async def test_unit__wrong_token__gives_nothing(source):
    unit, _ = source
    with pytest.raises(kv_transfers.StreamRefused, match="wrong stream token"):
        async with kv_transfers.KvSource.opened(unit.endpoint, "guessed"):
            pass


async def test_request__hands_over__ends_with_its_text_held_back(leased, fake_engine, make_request, until):
    _, peer = leased
    peer.send(Generate(stream=1, request=make_request(max_tokens=1, hands_over=True, stop=("hx",))))
    peer.send(Generate(stream=2, request=make_request("whole", max_tokens=1, stop=("hx",))))
    for request_id in await submitted(fake_engine, until, 2):
        fake_engine.emit(step(request_id, "h", FinishReason.LENGTH))
    await peer.until_finished(1, 2)

    assert (peer.text(1), peer.deltas[1][-1].held_back) == ("", 1)
    assert (peer.text(2), peer.deltas[2][-1].held_back) == ("h", 0)
