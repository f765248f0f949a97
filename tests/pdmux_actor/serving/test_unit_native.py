import os
import signal
from dataclasses import replace

import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Cancel, Credit, Generate

# ---- with the real engine process ----


@pytest.fixture
async def native(make_unit, engine_settings, make_lease, until, phases, connect):
    engine = NativeEngine(engine_settings)
    unit = await make_unit(engine)
    unit.apply_lease(make_lease(1, "a", "b"))
    await until(lambda: phases(unit) == {"a": "ready", "b": "ready"})
    peer = await connect(unit)
    return engine, unit, peer


async def test_unit__native_engine__serves_two_models(native, make_request, until):
    _, unit, peer = native

    peer.send(*(Generate(stream=i, request=make_request(f"r{i}", model="ab"[i % 2], max_tokens=8)) for i in range(8)))
    await peer.until_finished(*range(8))

    for i in range(8):
        assert len(peer.token_ids(i)) == 8
        assert peer.deltas[i][-1].finish is FinishReason.LENGTH
    await until(
        lambda: unit.report().load is not None and sum(m.output_tokens_total for m in unit.report().load.models) == 64
    )


async def test_unit__native_engine_killed__every_stream_ends_once_and_unit_is_ill(native, make_request, until):
    engine, unit, peer = native
    peer.send(*(Generate(stream=i, request=make_request(f"r{i}", model="a", max_tokens=4000)) for i in range(6)))
    while len(peer.deltas) < 6:
        assert await peer.next() is not None

    os.kill(engine.pid, signal.SIGKILL)
    for stream in range(6):
        peer.send(Credit(stream=stream, deltas=1000))
    await peer.until_finished(*range(6))

    for i in range(6):
        finishes = [d for d in peer.deltas[i] if d.finish]
        assert [(d.finish, d.retryable) for d in finishes] == [(FinishReason.ERROR, True)]
        assert "SIGKILL" in finishes[0].error
    assert not unit.is_healthy()


async def test_unit__native_engine_cancel__frees_the_blocks(native, make_request, until):
    _, unit, peer = native
    peer.send(Generate(stream=1, request=make_request(model="a", max_tokens=4000)))
    while 1 not in peer.deltas:
        await peer.next()

    peer.send(Cancel(stream=1))

    def is_free():
        load = unit.report().load
        if load is None or not any(model.prompt_tokens_total for model in load.models):  # "b" may be the first
            return False
        return load.free_blocks + load.cached_blocks == load.total_blocks  # full rows stay in the prefix cache

    await until(is_free)


async def test_unit__native_engine_request_continued__shows_the_rest_only(native, make_request):
    _, _, peer = native
    whole = make_request("whole", model="a", max_tokens=10)
    peer.send(Generate(stream=1, request=whole))
    await peer.until_finished(1)
    tokens = peer.token_ids(1)

    peer.send(Generate(stream=2, request=replace(whole, output_token_ids=tuple(tokens[:4]))))
    await peer.until_finished(2)

    assert peer.token_ids(2) == tokens[4:]
    assert peer.text(1).endswith(peer.text(2))
    assert len(peer.text(1)) == 10


async def test_unit__native_engine_simulated_logprobs__come_with_every_token(native, make_request):
    _, unit, peer = native
    request = make_request(model="a", max_tokens=6, sampling={"logprobs": 3})

    peer.send(Generate(stream=1, request=request))
    await peer.until_finished(1)

    logprobs = [entry for delta in peer.deltas[1] for entry in delta.logprobs]
    assert len(logprobs) == 6
    for entry in logprobs:
        assert entry.top[0].token == entry.token
        assert entry.logprob == entry.top[0].logprob > entry.top[1].logprob > entry.top[2].logprob
    assert unit.is_healthy()
