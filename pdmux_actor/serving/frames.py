"""The frame stream between gateways and a unit: one TCP connection, many requests, no pickle.

A frame is a 4-byte big-endian length and a msgpack-encoded message of one of the tagged types below. The gateway opens
the connection with Hello; the unit answers Welcome or Refused. `stream` ids are chosen by the gateway, unique within a
connection. Either side sends Ping when it has been silent for `HEARTBEAT_S`; silence of `SILENCE_S`, unless
settings say otherwise, means that the peer is lost. A stream ends with a Delta whose `finish` is set; the unit forgets
it then.

Credit: a unit sends at most `credit` Deltas per stream beyond what the gateway has granted and merges what it must hold
back, so a slow client costs neither side unbounded memory. A stream's last Delta needs no credit.

A unit whose request names another one in `kv_from` opens a connection there as a gateway does, and asks with FetchKv
for the rows of the prompt's KV that it lacks, one answer after the other.

A unit that is sent what it cannot take answers Refused with the reason, at any time, and closes the connection.
"""

import hmac
import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from pdmux_actor.kv.prefix_kv import PrefixRows, PromptStart
from pdmux_actor.messages import FinishReason, GenerateRequest

PROTOCOL_VERSION = 3
HEARTBEAT_S = 1.0
SILENCE_S = 10.0
INITIAL_CREDIT = 64
MAX_FRAME_BYTES = 64 * 1024 * 1024
HELLO_DEADLINE_S = 5.0
MAX_HELLO_BYTES = 4096
LENGTH = struct.Struct(">I")


WeightsName = tuple[str | int | None, ...]
"""What a model was loaded from, and how: KV goes only between units where this is the same."""


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token: str
    logprob: float
    bytes: list[int]
    top: list[TopLogprob]


class PromptToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token of the prompt and the bytes that it stands for. The first has no log-probability; `rank` 1 is the most
    probable. `top` holds (token id, bytes, log-probability), most probable first.
    """

    token_id: int
    token: bytes
    logprob: float | None = None
    rank: int = 0
    top: tuple[tuple[int, bytes, float], ...] = ()


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    version: int
    token: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    unit_id: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    stream: int
    request: GenerateRequest
    credit: int = INITIAL_CREDIT


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client is gone or has enough: free the sequence within one step. The unit sends no further Delta."""

    stream: int


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    stream: int
    deltas: int


class FetchKv(msgspec.Struct, frozen=True, tag="fetch_kv"):
    """Asks, unit to unit, for rows of a prompt's KV from `first_row` on. Answered by KvFetched with the same `call`."""

    call: int
    prompt: PromptStart
    first_row: int
    weights: WeightsName


class KvFetched(msgspec.Struct, frozen=True, tag="kv_fetched"):
    """`rows` are as many as one frame should have; None: there are none, or the model's weights are others."""

    call: int
    rows: PrefixRows | None


class KvMoved(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Says what came of fetching a prompt's KV. Nothing had to where the unit had all of it."""

    num_bytes: int = 0
    seconds: float = 0.0
    why_not_all: str = ""


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    """New output of a stream. `sequence` counts Deltas from 0. `text` is what may be shown; it can lag behind
    `token_ids` while a character is incomplete or a stop string may be forming. `retryable` marks a failure that
    another unit may not share (the model left this unit, the engine died). `held_back` counts the newest tokens of the
    stream that `text` does not reflect yet: a gateway that continues elsewhere resends the tokens before them. So the
    text shown so far always ends at the end of a token: one that may be shown only in part is held back whole, and a
    unit that starts from `output_token_ids` shows only what comes after them. `param` names the parameter that the
    engine cannot take as it is: the client's fault. `engine_died` marks a retryable failure that the request itself may
    have caused: the engine ended while it held the request. `cached_tokens` of the prompt had their KV already: told
    once, with the first token; so is the `prompt`, token by token, where its log-probabilities were asked for, and the
    `embedding`, as of TokenEvent, of a request that `embeds`. `stop` is the stop string that ended the stream.
    `kv_moved` is told once, with the first token, of a request with `kv_from`.
    """

    stream: int
    sequence: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    error: str | None = None
    held_back: int = 0
    retryable: bool = False
    param: str | None = None
    engine_died: bool = False
    cached_tokens: int = 0
    prompt: tuple[PromptToken, ...] = ()
    embedding: bytes = b""
    stop: str = ""
    kv_moved: KvMoved | None = None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """`stalled`, said by a unit: its engine makes no progress. Its streams stay open; a gateway that has another unit
    for them goes on there.
    """

    stalled: bool = False


ToUnit = Hello | Generate | Cancel | Credit | FetchKv | Ping
FromUnit = Welcome | Refused | Delta | KvFetched | Ping


class ProtocolViolation(Exception):
    """The peer sent what it must not."""


def check_hello(hello: Hello, *, version: int, token: str | None, speaker: str) -> None:
    """Raises ProtocolViolation: it is of another version than `speaker` speaks, or its token is not `token`, of which
    there may be none yet.
    """
    if hello.version != version:
        raise ProtocolViolation(f"protocol version {hello.version}, {speaker} speaks {version}")
    if token is None:
        raise ProtocolViolation(f"{speaker} has no lease yet; try again")
    if not hmac.compare_digest(token.encode(), hello.token.encode()):
        raise ProtocolViolation("wrong stream token")


class FrameTooLarge(ValueError):
    """A peer announced a frame above the limit."""


def framed(message: msgspec.Struct) -> bytes:
    """Puts a message behind its length, as all processes of muxfleet send them to each other."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def encode(message: ToUnit | FromUnit) -> bytes:
    return framed(message)


class FrameSplitter:
    """Cuts a byte stream into frame bodies (sans-I/O).

    >>> splitter = FrameSplitter()
    >>> data = encode(Ping())
    >>> list(splitter.feed(data[:3])), [len(body) == len(data) - 4 for body in splitter.feed(data[3:] + data)]
    ([], [True, True])
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes  # may be raised between two frames
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Raises FrameTooLarge; the connection is of no use after that."""
        if self._buffer:  # a frame is there in part
            self._buffer += data
            data = self._buffer
        start = 0
        try:
            while (body_at := start + LENGTH.size) <= len(data):
                (length,) = LENGTH.unpack_from(data, start)
                if length > self.max_frame_bytes:
                    raise FrameTooLarge(f"frame of {length} bytes, limit {self.max_frame_bytes}")
                if body_at + length > len(data):
                    break
                start = body_at + length
                yield bytes(memoryview(data)[body_at:start])
        finally:
            if data is self._buffer:
                del self._buffer[:start]
            else:
                self._buffer += memoryview(data)[start:]


MessageT = TypeVar("MessageT")


class FrameReader(Generic[MessageT]):
    """Turns a byte stream into messages of one kind, a type or a union of types (sans-I/O)."""

    def __init__(self, kind: object) -> None:
        self._splitter = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(kind)

    def feed(self, data: bytes) -> Iterator[MessageT]:
        """Raises FrameTooLarge, msgspec.DecodeError; the connection is of no use after that."""
        return map(self._decoder.decode, self._splitter.feed(data))
