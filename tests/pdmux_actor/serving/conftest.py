import asyncio
import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.backends.base import EngineCapacity
from pdmux_actor.errors import EngineDied, ModelLoadError
from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import PROTOCOL_VERSION, Delta, FrameSplitter, FromUnit, Hello, Ping, encode
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


class FakeEngine:
    """An engine whose steps the test decides. Answers aborts and removals as an engine does."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.requests: dict[str, GenerateRequest] = {}  # not finished yet
        self.failing_loads = 0
        self.load_gate = asyncio.Event()
        self.load_gate.set()
        self._queue: asyncio.Queue = asyncio.Queue()
        self._alive = True

    async def start(self) -> EngineCapacity:
        return EngineCapacity(device="fake", memory_bytes=1 << 30, block_bytes=1024, total_blocks=1000)

    async def add_model(self, assignment: ModelAssignment) -> int:
        await self.load_gate.wait()
        self.calls.append(("add", assignment.model, assignment.quota_blocks))
        if self.failing_loads:
            self.failing_loads -= 1
            raise ModelLoadError(model=assignment.model, reason="broken", remedy="mend it")
        return assignment.max_model_len or 4096

    async def remove_model(self, model: str) -> None:
        self.calls.append(("remove", model))
        for request_id in [r.request_id for r in self.requests.values() if r.model == model]:
            self.emit(TokenEvent(request_id=request_id, finish=FinishReason.ERROR, error="has left this unit"))
        await asyncio.sleep(0)

    async def set_quotas(self, quota_blocks) -> dict[str, int]:
        self.calls.append(("quotas", dict(quota_blocks)))
        return {model: 10 * quota for model, quota in quota_blocks.items()}

    async def set_policy(self, policy: str) -> None:
        self.calls.append(("policy", policy))

    def submit(self, request: GenerateRequest) -> None:
        assert request.request_id not in self.requests
        self.requests[request.request_id] = request

    def abort(self, request_id: str) -> None:
        self.calls.append(("abort", request_id))
        if request_id in self.requests:
            self.emit(TokenEvent(request_id=request_id, finish=FinishReason.ABORT))

    def emit(self, *events: TokenEvent) -> None:
        """One engine step."""
        for event in events:
            if event.finish is not None:
                del self.requests[event.request_id]
        self._queue.put_nowait(events)

    def die(self) -> None:
        self._alive = False
        self._queue.put_nowait(EngineDied(pid=1, exit_code=-9))

    async def events(self):
        while (item := await self._queue.get()) is not None:
            if isinstance(item, EngineDied):
                raise item
            yield item

    def load_report(self) -> None:
        return None

    def is_alive(self) -> bool:
        return self._alive

    async def stop(self) -> None:
        self._alive = False
        self._queue.put_nowait(None)


class GatewayPeer:
    """The gateway's end of a frame stream, in its plainest form."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._splitter = FrameSplitter()
        self._frames: list = []
        self.deltas: dict[int, list[Delta]] = {}

    @classmethod
    async def connect(cls, endpoint: str, token: str | None = "secret", version: int = PROTOCOL_VERSION):
        host, _, port = endpoint.rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        if token is not None:
            peer.send(Hello(version=version, token=token))
        return peer

    def send(self, *messages) -> None:
        self.writer.write(b"".join(encode(message) for message in messages))

    async def next(self, timeout_s: float = 10.0):
        """The next frame that is no Ping; None at end-of-file."""
        async with asyncio.timeout(timeout_s):
            while True:
                while self._frames:
                    frame = self._frames.pop(0)
                    if isinstance(frame, Ping):
                        continue
                    if isinstance(frame, Delta):
                        assert frame.sequence == len(self.deltas.setdefault(frame.stream, []))
                        self.deltas[frame.stream].append(frame)
                    return frame
                try:
                    data = await self.reader.read(65536)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += [msgspec.msgpack.decode(body, type=FromUnit) for body in self._splitter.feed(data)]

    async def until_finished(self, *streams: int) -> None:
        while not all(stream in self.deltas and self.deltas[stream][-1].finish for stream in streams):
            assert await self.next() is not None, "the unit closed the connection"

    def text(self, stream: int) -> str:
        return "".join(delta.text for delta in self.deltas[stream])

    def token_ids(self, stream: int) -> list[int]:
        return [token_id for delta in self.deltas[stream] for token_id in delta.token_ids]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
def fake_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_lease(make_assignment):
    def make(version: int, *models, policy: str = "mux") -> Lease:
        assignments = tuple(m if isinstance(m, ModelAssignment) else make_assignment(m) for m in models)
        return Lease(version=version, models=assignments, policy=policy, stream_token="secret")

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
def until():
    async def wait(condition, timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - states that set no event
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def phases():
    return lambda unit: {status.model: status.phase.value for status in unit.report().models}
