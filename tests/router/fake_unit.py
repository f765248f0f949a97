"""A unit that speaks real frames over loopback TCP. Token ids are bytes, see `byte_tokenizer`."""

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport, WeightsOrigin
from pdmux_actor.messages import FinishReason, GenerateRequest, Slo
from pdmux_actor.serving.frames import (
    PROTOCOL_VERSION,
    Cancel,
    Credit,
    Delta,
    FrameSplitter,
    Generate,
    Hello,
    KvMoved,
    Ping,
    PromptToken,
    Refused,
    TokenLogprob,
    TopLogprob,
    ToUnit,
    Welcome,
    encode,
)
from placement.unit_role import UnitRole
from router.view import FleetView, ModelCard, UnitView

TOKEN = "stream-token"
EASY = Slo(ttft_s=300.0, tbt_s=60.0)  # met also on a machine that stands still for a while
SPEECH = "Grüße aus der Küche: äöü · €, 漢字 and plain letters, again and again. " * 40
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_byte_tokenizer(
    folder: Path, *, chat_template: str | None = CHAT_TEMPLATE, is_backwards: bool = False
) -> Path:
    """A tokenizer in Hugging Face layout whose token ids 0..255 are bytes; 256 is the end of a sequence. One that
    `is_backwards` has 255 for the byte 0.
    """
    characters = _byte_characters()
    vocab = {c: 255 - b if is_backwards else b for b, c in characters.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _byte_characters() -> dict[int, str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {b: chr(b) for b in printable}
    for extra, b in enumerate(b for b in range(256) if b not in characters):
        characters[b] = chr(256 + extra)
    return characters


def speech_tokens(request: GenerateRequest) -> list[int]:
    """What the fake model says: depends on the seed, and on nothing that a continuation changes."""
    start = request.sampling.seed % 7 if request.sampling.temperature else 0
    return list(SPEECH[start:].encode())


GIVEN_BACK = Delta(stream=0, sequence=0, text="", token_ids=[], finish=FinishReason.ERROR, error="gone", retryable=True)


@dataclass(eq=False)
class FakeUnit:
    """After `fuse[0]` tokens of a request it drops every connection and takes that entry off; units may share a fuse.
    `fail` ends a request at once; a prompt that begins with the token `poison` ends every connection. It `constrains`
    outputs in name only. `says` is what it answers, in place of the speech. With an `origin` it gives back what was
    made for other weights. After `lets_go[0]` tokens it gives a request back, as when its model has left.
    """

    unit_id: str = "unit-a"
    models: tuple[str, ...] = ("demo/bytes",)
    max_model_len: int = 4096
    token_gap_s: float = 0.0
    tokens_per_delta: int = 1
    fuse: list[int] = field(default_factory=list)
    lets_go: list[int] = field(default_factory=list)
    mute: bool = False
    stalled: bool = False  # it says so, and no more
    constrains: bool = False
    role: UnitRole = UnitRole.BOTH
    origin: WeightsOrigin | None = None
    given_back: int = 0
    cached_tokens: int = 0  # what it says of every prompt
    poison: int | None = None
    fail: Callable[[GenerateRequest], Delta | None] = lambda request: None
    says: Callable[[GenerateRequest], str] | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    granted: dict[int, int] = field(default_factory=dict)
    received: asyncio.Queue[ToUnit] = field(default_factory=asyncio.Queue)
    connections: int = 0

    async def __aenter__(self) -> "FakeUnit":
        self._decoder = msgspec.msgpack.Decoder(ToUnit)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def report(self, phase: ModelPhase = ModelPhase.READY) -> UnitReport:
        return UnitReport(
            unit_id=self.unit_id,
            node="node",
            pool="pool",
            num_gpus=1,
            endpoint=self.endpoint,
            memory_bytes=1,
            block_bytes=1,
            total_blocks=1,
            lease_version=1,
            constrains=self.constrains,
            role=self.role,
            models=tuple(
                ModelStatus(
                    model=m,
                    phase=phase,
                    max_model_len=self.max_model_len if phase is ModelPhase.READY else None,
                    origin=self.origin,
                )
                for m in self.models
            ),
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        splitter = FrameSplitter()
        streams: dict[int, asyncio.Task[None]] = {}
        credits: dict[int, asyncio.Semaphore] = {}
        try:
            while data := await reader.read(65536):
                for body in splitter.feed(data):
                    message = self._decoder.decode(body)
                    self.received.put_nowait(message)
                    match message:
                        case Hello(version=version, token=token):
                            welcome = Welcome(unit_id=self.unit_id)
                            ok = version == PROTOCOL_VERSION and token == TOKEN
                            writer.write(encode(welcome if ok else Refused(reason="wrong token")))
                        case Generate(stream=stream, request=request) if self._has_others_than(request):
                            self.given_back += 1
                            end = FinishReason.ERROR
                            writer.write(encode(Delta(stream, 0, "", [], finish=end, error="others", retryable=True)))
                        case Generate(stream=stream, request=request, credit=credit):
                            self.requests.append(request)
                            credits[stream] = asyncio.Semaphore(credit)
                            task = asyncio.create_task(self._generate(stream, request, credits[stream], writer))
                            streams[stream] = task
                            self._tasks.add(task)
                        case Cancel(stream=stream):
                            streams[stream].cancel()
                        case Credit(stream=stream, deltas=deltas):
                            self.granted[stream] = self.granted.get(stream, 0) + deltas
                            for _ in range(deltas):
                                credits[stream].release()
                        case Ping() if not self.mute:
                            writer.write(encode(Ping()))
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            for task in streams.values():
                task.cancel()
            self._writers.discard(writer)
            writer.close()

    def _has_others_than(self, request: GenerateRequest) -> bool:
        return self.origin is not None and request.weights != self.origin.name()

    async def _generate(
        self, stream: int, request: GenerateRequest, credit: asyncio.Semaphore, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._say(stream, request, credit, writer)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise

    async def _say(
        self, stream: int, request: GenerateRequest, credit: asyncio.Semaphore, writer: asyncio.StreamWriter
    ) -> None:
        if request.prompt_token_ids[0] == self.poison:
            self.drop_connections()
            return
        if (failure := self.fail(request)) is not None:
            writer.write(encode(msgspec.structs.replace(failure, stream=stream)))
            return
        said = speech_tokens(request) if self.says is None else list(self.says(request).encode())
        tokens = said[: request.sampling.max_tokens]
        position = len(request.output_token_ids)
        assert tokens[:position] == list(request.output_token_ids), "a continuation must go on where it was cut"
        shown = len(bytes(tokens[:position]).decode())
        sequence = 0
        while position < len(tokens):
            await asyncio.sleep(self.token_gap_s)
            if self.fuse and position >= self.fuse[0]:
                self.fuse.pop(0)
                self.drop_connections()
                return
            if self.lets_go and position >= self.lets_go[0]:
                self.lets_go.pop(0)
                writer.write(encode(msgspec.structs.replace(GIVEN_BACK, stream=stream, sequence=sequence)))
                return
            await credit.acquire()
            while self.stalled:
                writer.write(encode(Ping(stalled=True)))
                await asyncio.sleep(0.02)
            new = tokens[position : position + self.tokens_per_delta]
            position += len(new)
            held_back, text = _showable(tokens[:position], request.stop)
            finish = None
            if position == len(tokens):
                finish = FinishReason.STOP if len(said) < request.sampling.max_tokens else FinishReason.LENGTH
            everything = bytes(tokens[:position]).decode(errors="replace")
            if finish is not None and not (request.hands_over and finish is FinishReason.LENGTH):
                text, held_back = everything, 0
            stop_at, stop = min(((i, s) for s in request.stop if (i := everything.find(s)) >= 0), default=(None, ""))
            if stop_at is not None:
                text, finish, held_back = everything[:stop_at], FinishReason.STOP, 0
            logprobs = None if request.sampling.logprobs is None else [_logprob(t, request) for t in new]
            writer.write(
                encode(
                    Delta(
                        stream=stream,
                        sequence=sequence,
                        text=text[shown:],
                        token_ids=new,
                        logprobs=logprobs,
                        finish=finish,
                        held_back=held_back,
                        stop=stop,
                        cached_tokens=self.cached_tokens if sequence == 0 else 0,
                        prompt=_prompt(request) if sequence == 0 else (),
                        embedding=_embedding(request),
                        kv_moved=KvMoved(num_bytes=1000, seconds=0.1) if request.kv_from and sequence == 0 else None,
                    )
                )
            )
            sequence += 1
            shown = len(text)
            if finish is not None:
                return


def _showable(tokens: list[int], stops: tuple[str, ...]) -> tuple[int, str]:
    """How many of the newest tokens to hold back, and the text of the others."""
    data = bytes(tokens)
    for held_back in range(len(tokens) + 1):
        try:
            text = data[: len(data) - held_back].decode()
        except UnicodeDecodeError:
            continue
        if not any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop))):
            return held_back, text
    raise AssertionError("no text at all is always showable")


def prompt_logprob(token_id: int) -> float:
    return -token_id / 128


def _prompt(request: GenerateRequest) -> tuple[PromptToken, ...]:
    """Each token's neighbours in the vocabulary are its alternatives, the first of them more probable."""
    wanted = request.sampling.prompt_logprobs
    if wanted is None:
        return ()
    first, *rest = request.prompt_token_ids
    return (
        PromptToken(first, bytes([first])),
        *(
            PromptToken(
                t,
                bytes([t]),
                prompt_logprob(t),
                2,
                tuple(
                    ((t + i + 1) % 256, bytes([(t + i + 1) % 256]), prompt_logprob(t) / 2 - i) for i in range(wanted)
                ),
            )
            for t in rest
        ),
    )


def fake_logit(prompt_token_ids: tuple[int, ...], token_id: int) -> float:
    return float(sum(prompt_token_ids) * (token_id + 1) % 97) / 16 - 3


def _embedding(request: GenerateRequest) -> bytes:
    if not request.embeds:
        return b""
    prompt, scored = request.prompt_token_ids, request.scored_tokens
    return (
        struct.pack(f"<{len(scored)}f", *(fake_logit(prompt, t) for t in scored)) if scored else fake_embedding(prompt)
    )


def fake_embedding(prompt_token_ids: tuple[int, ...]) -> bytes:
    """Eight numbers, not normalised, that depend on the prompt."""
    return np.random.default_rng(prompt_token_ids).standard_normal(8).astype("<f4").tobytes()


def _logprob(token_id: int, request: GenerateRequest) -> TokenLogprob:
    token = bytes([token_id]).decode(errors="replace")
    top = [TopLogprob(token=token, logprob=-0.5, bytes=[token_id])] * (request.sampling.logprobs or 0)
    return TokenLogprob(token=token, logprob=-0.5, bytes=[token_id], top=top)


def fleet_view(
    *units: FakeUnit,
    source: Path,
    models: tuple[str, ...] = ("demo/bytes",),
    phase: ModelPhase = ModelPhase.READY,
    stream_token: str = TOKEN,
    slo: Slo = EASY,
    weights: tuple[str | None, ...] = (),
) -> FleetView:
    return FleetView(
        models=tuple(
            ModelCard(model=m, source=str(source), revision=None, slo=slo, created_s=1_700_000_000, weights=weights)
            for m in models
        ),
        units=tuple(UnitView(report=unit.report(phase), age_s=0.1) for unit in units),
        stream_token=stream_token,
    )


async def eventually(condition: Callable[[], object], deadline_s: float = 60.0) -> None:
    """Polls, because what is waited for happens on the other side of a socket."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  (the condition is anybody's; there is no event to await)
            await asyncio.sleep(0.005)
