"""A unit on the CPU executor: the demo's path without Ray and HTTP."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from gateway_peer import GatewayPeer
from tokenizers import Tokenizer

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease
from pdmux_actor.messages import FinishReason, StructuredKind, StructuredOutput
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Generate
from pdmux_actor.serving.unit import Unit

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unit() -> AsyncIterator[Unit]:
    """Its engine takes seconds to start: one for all."""
    settings = EngineSettings(
        kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=2, host_memory_bytes=1 << 30, dtype="float32"
    )
    unit = Unit(NativeEngine(settings), unit_id="u1", node="n1", pool="p", num_gpus=1, drain_timeout_s=5.0)
    await unit.start()
    unit.apply_lease(Lease(version=1, models=(), policy="mux", stream_token="secret"))
    yield unit
    await unit.stop()


@pytest.fixture(scope="module")
def versions() -> Iterator[int]:
    """Of the unit's further leases."""
    return itertools.count(2)


@pytest_asyncio.fixture(loop_scope="module")
async def peer(unit: Unit) -> AsyncIterator[GatewayPeer]:
    peer = await GatewayPeer.connect(unit.endpoint)
    yield peer
    await peer.close()


async def test_unit__torch_cpu__three_models_answer_with_text_of_their_tokens(
    demo_checkpoints, unit, peer, versions, make_lease, make_assignment, make_request, until, phases
):
    assignments = [
        make_assignment(name, quota_blocks=1000, source=str(folder)) for name, folder in demo_checkpoints.items()
    ]
    unit.apply_lease(make_lease(next(versions), *assignments))
    await until(lambda: phases(unit) == dict.fromkeys(demo_checkpoints, "ready"), timeout_s=120)

    sampling = {"ignore_eos": True, "logprobs": 2}
    for stream, name in enumerate(demo_checkpoints):
        request = make_request(f"r{stream}", model=name, max_tokens=12, sampling=sampling, prompt_token_ids=(5, 6, 7))
        peer.send(Generate(stream=stream, request=request))
    await peer.until_finished(*range(len(demo_checkpoints)))

    for stream, name in enumerate(demo_checkpoints):
        tokenizer = Tokenizer.from_file(str(demo_checkpoints[name] / "tokenizer.json"))
        assert peer.deltas[stream][-1].finish is FinishReason.LENGTH
        assert len(peer.token_ids(stream)) == 12
        assert peer.text(stream) == tokenizer.decode(peer.token_ids(stream), skip_special_tokens=True)
        logprobs = [logprob for delta in peer.deltas[stream] for logprob in delta.logprobs]
        assert len(logprobs) == 12
        assert all(logprob.logprob <= 0 and len(logprob.top) == 2 for logprob in logprobs)


async def test_unit__torch_cpu__model_that_slept_says_the_same_and_no_block_is_lost(
    demo_checkpoints, unit, peer, versions, make_lease, make_assignment, make_request, until, phases
):
    a, b = [
        make_assignment(name, quota_blocks=1000, source=str(folder))
        for name, folder in list(demo_checkpoints.items())[:2]
    ]
    unit.apply_lease(make_lease(next(versions), a, b))
    await until(lambda: phases(unit) == {a.model: "ready", b.model: "ready"}, timeout_s=120)

    async def says(stream):
        request = make_request(f"r{stream}", model=a.model, max_tokens=12, sampling={"ignore_eos": True})
        peer.send(Generate(stream=stream, request=request))
        await peer.until_finished(stream)
        return peer.token_ids(stream)

    before = await says(1)
    unit.apply_lease(make_lease(next(versions), b, asleep=[a]))
    await until(lambda: phases(unit) == {a.model: "asleep", b.model: "ready"})
    (asleep,) = [s.asleep for s in unit.report().models if s.asleep is not None]
    assert asleep.host_bytes > 100_000
    assert asleep.wake_s > 0
    assert unit.report().host_memory_bytes == 1 << 30

    unit.apply_lease(make_lease(next(versions), a, b))
    await until(lambda: phases(unit) == {a.model: "ready", b.model: "ready"})
    assert await says(2) == before
    await until(lambda: {m.model for m in unit.report().load.models} == {a.model, b.model})

    unit.apply_lease(make_lease(next(versions), b, asleep=[a]))
    await until(lambda: phases(unit) == {a.model: "asleep", b.model: "ready"})
    unit.apply_lease(make_lease(next(versions), b))
    await until(lambda: phases(unit) == {b.model: "ready"})
    await until(lambda: {m.model for m in unit.report().load.models} == {b.model})
    assert sum(m.used_blocks for m in unit.report().load.models) == 0


async def test_unit__torch_cpu__outputs_follow_forms_and_end_at_tokens(
    demo_checkpoints, unit, peer, versions, make_lease, make_assignment, make_request, until, phases
):
    name = "demo-llama"
    assignment = make_assignment(name, quota_blocks=1000, source=str(demo_checkpoints[name]))
    unit.apply_lease(make_lease(next(versions), assignment))
    await until(lambda: phases(unit) == {name: "ready"}, timeout_s=120)
    assert unit.report().constrains

    def ask(stream, **sampling):
        sampling = {"seed": 5, **sampling}
        request = make_request(f"r{stream}", model=name, max_tokens=300, sampling=sampling, prompt_token_ids=(5, 6, 7))
        peer.send(Generate(stream=stream, request=request))

    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    ask(0, structured_output=StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=json.dumps(schema)))
    ask(1, structured_output=StructuredOutput(kind=StructuredKind.REGEX, text="(a", param="guided_regex"))
    ask(2, stop_token_ids=tuple(range(0, 640, 3)), ignore_eos=True)
    await peer.until_finished(0, 1, 2)

    assert json.loads(peer.text(0))["n"] in (1, 2)
    assert peer.deltas[0][-1].finish is FinishReason.STOP
    refused = peer.deltas[1][-1]
    assert (refused.finish, refused.param, refused.retryable) == (FinishReason.ERROR, "guided_regex", False)
    assert "position 3" in refused.error
    tokenizer = Tokenizer.from_file(str(demo_checkpoints[name] / "tokenizer.json"))
    *shown, stop = peer.token_ids(2)
    assert stop % 3 == 0
    assert peer.text(2) == tokenizer.decode(shown, skip_special_tokens=True)
