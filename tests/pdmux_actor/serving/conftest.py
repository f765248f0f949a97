import asyncio
import json
from pathlib import Path

import pytest
from gateway_peer import GatewayPeer
from scripted_engine import ScriptedEngine
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Welcome
from pdmux_actor.serving.unit import Unit

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
VOCAB_SIZE = 257


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint without weights: what the simulated executor and a unit need of one."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    ascii_first = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(ascii_first)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def engine_settings() -> EngineSettings:
    return EngineSettings(kind="simulated", kv_pool_bytes=32 * 1024 * 1024, num_cores=2)


@pytest.fixture
def make_assignment(checkpoint):
    def make(model: str = "tiny", quota_blocks: int = 1000, **changes) -> ModelAssignment:
        values = {"source": str(checkpoint), "slo": SLO} | changes
        return ModelAssignment(model=model, quota_blocks=quota_blocks, **values)

    return make


@pytest.fixture
def make_request():
    def make(request_id: str = "r", model: str = "tiny", max_tokens: int = 5, **changes) -> GenerateRequest:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **changes.pop("sampling", {}))
        values = {"prompt_token_ids": (1, 2, 3), "slo": SLO} | changes
        return GenerateRequest(request_id=request_id, model=model, sampling=sampling, **values)

    return make


@pytest.fixture
def fake_engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def make_lease(make_assignment):
    def assigned(models) -> tuple[ModelAssignment, ...]:
        return tuple(m if isinstance(m, ModelAssignment) else make_assignment(m) for m in models)

    def make(version: int, *models, policy: str = "mux", asleep=()) -> Lease:
        return Lease(
            version=version, models=assigned(models), policy=policy, stream_token="secret", asleep=assigned(asleep)
        )

    return make


@pytest.fixture
async def make_unit():
    units = []

    async def make(engine, **changes) -> Unit:
        values = {"drain_timeout_s": 5.0, "first_retry_s": 0.05} | changes
        unit = Unit(engine, unit_id="u1", node="n1", pool="p", num_gpus=1, **values)
        units.append(unit)
        await unit.start()
        return unit

    yield make
    for unit in units:
        await unit.stop()


@pytest.fixture
async def connect():
    peers = []

    async def make(unit_or_endpoint, **changes) -> GatewayPeer:
        endpoint = getattr(unit_or_endpoint, "endpoint", unit_or_endpoint)
        peer = await GatewayPeer.connect(endpoint, **changes)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        await peer.close()


@pytest.fixture
async def leased(make_unit, fake_engine, make_lease, until, phases, connect):
    """A unit that serves "tiny" on the fake engine, and a gateway connected to it."""
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    peer = await connect(unit)
    assert isinstance(await peer.next(), Welcome)
    return unit, peer


@pytest.fixture
def until():
    async def wait(condition, timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - states that set no event
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def phases():
    return lambda unit: {status.model: status.phase.value for status in unit.report().models}
