"""What a gateway asks of the process that works on text, and what that answers: frames of msgpack."""

import struct
from typing import Any

import msgspec

LENGTH = struct.Struct(">I")


class TokenizerKey(msgspec.Struct, frozen=True, array_like=True):
    source: str
    revision: str | None


class LoadTokenizer(msgspec.Struct, frozen=True, tag="load"):
    call: int
    tokenizer: TokenizerKey


class EncodeChat(msgspec.Struct, frozen=True, tag="chat"):
    """Messages to tokens. The template may take `template_timeout_s`; more than `max_tokens` are only counted."""

    call: int
    tokenizer: TokenizerKey
    messages: list[dict[str, str]]
    template_arguments: dict[str, Any]
    template_timeout_s: float
    max_tokens: int


class EncodeText(msgspec.Struct, frozen=True, tag="text"):
    call: int
    tokenizer: TokenizerKey
    text: str
    add_special_tokens: bool
    max_tokens: int


class DecodeTokens(msgspec.Struct, frozen=True, tag="decode"):
    call: int
    tokenizer: TokenizerKey
    token_ids: list[int]


class TokenizerLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """`template_variables` are what a request may set of what the template reads; None: there is no template.
    `characters_per_token` bounds how many characters one token can stand for; None: nothing bounds it.
    """

    call: int
    vocab_size: int
    template_variables: list[str] | None
    characters_per_token: int | None


class TokenizerFailed(msgspec.Struct, frozen=True, tag="failed"):
    call: int
    reason: str


class Encoded(msgspec.Struct, frozen=True, tag="encoded"):
    """`token_ids` is empty where `num_tokens` exceeds what was asked for."""

    call: int
    num_tokens: int
    token_ids: list[int]


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    call: int
    text: str


class TextRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The template refuses the messages or, `too_slow`, did not come to an end in time."""

    call: int
    reason: str
    too_slow: bool = False


TextCall = LoadTokenizer | EncodeChat | EncodeText | DecodeTokens
TextAnswer = TokenizerLoaded | TokenizerFailed | Encoded | Decoded | TextRefused


def frame(message: TextCall | TextAnswer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
