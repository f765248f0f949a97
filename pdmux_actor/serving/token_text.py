"""Token ids to text, a token at a time, never splitting a character.

Two ways, by the tokenizer's decoder. Byte-level BPE maps every token to bytes, so an incremental UTF-8 decoder gives
exactly the text of decoding all ids at once. For any other decoder a token's text depends on its neighbours (a leading
space, runs of byte tokens), so a window of the last tokens is decoded again and what is new is taken from it.
"""

import codecs
import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from tokenizers import Tokenizer, pre_tokenizers

_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 16  # a longer run without a whole character is broken, not incomplete
_CONTEXT_TOKENS = 8  # of a prompt: enough for a character of four bytes


class TokenText(Protocol):
    """Text of a growing list of tokens."""

    def push(self, token_id: int) -> str | None:
        """Text of this token and of the tokens held before it; None while their last character is incomplete."""
        ...

    def flush(self) -> str:
        """Text of the tokens held, broken characters replaced."""
        ...


class TokenBytes:
    """The bytes that a token stands for. One per tokenizer; ids are looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = {} if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
        self.is_byte_level = decoder.get("type") == "ByteLevel"
        self._marks_spaces = "\u2581" in json.dumps(decoder, ensure_ascii=False)
        self._byte_of = _byte_level_alphabet()
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._bytes: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Bytes of any token, special ones too; none for an id that the tokenizer does not know."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def has_text(self, token_id: int) -> bool:
        """False for special tokens and unknown ids, which decoding skips."""
        return token_id not in self._special and self.of(token_id) != b""

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._special:
            return token.encode()
        if self.is_byte_level:
            if all(char in self._byte_of for char in token):
                return bytes(self._byte_of[char] for char in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return (token.replace("\u2581", " ") if self._marks_spaces else token).encode()


class ByteLevelText:
    """Text of byte-level BPE tokens."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, token_id: int) -> str | None:
        if self._token_bytes.has_text(token_id):
            self._held += self._decoder.decode(self._token_bytes.of(token_id))
        incomplete, _ = self._decoder.getstate()
        if incomplete:
            return None
        text, self._held = self._held, ""
        return text

    def flush(self) -> str:
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return text


class WindowText:
    """Text of tokens under any decoder (the prefix-offset method of vLLM and TGI).

    A run of byte tokens that is not UTF-8 is decoded from where the text was last whole; decoding all ids at once would
    take back characters that were already shown.
    """

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes, prompt_token_ids: Sequence[int] = ()) -> None:
        """Text behind the prompt's keeps its leading space; behind a special token it begins anew."""
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        context = list(takewhile(token_bytes.has_text, reversed(prompt_token_ids[-_CONTEXT_TOKENS:])))
        self._shown: list[int] = context[
            ::-1
        ]  # of the window, those whose text is out: they are the next ones' context
        self._held: list[int] = []

    def push(self, token_id: int) -> str | None:
        if not self._token_bytes.has_text(token_id):
            return None if self._held else ""
        self._held.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_TOKENS:
            return None
        if text:
            self._shown = self._held
        else:
            self._shown += self._held  # a leading space that the decoder strips: context only with what was before
        self._held = []
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._shown, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        if not self._held:
            return ""
        before = self._tokenizer.decode(self._shown, skip_special_tokens=True)
        window = self._tokenizer.decode(self._shown + self._held, skip_special_tokens=True)
        if window.startswith(before):
            return window[len(before) :]
        return self._tokenizer.decode(self._held, skip_special_tokens=True)


def token_text(tokenizer: Tokenizer, token_bytes: TokenBytes, prompt_token_ids: Sequence[int] = ()) -> TokenText:
    if token_bytes.is_byte_level:
        return ByteLevelText(token_bytes)
    return WindowText(tokenizer, token_bytes, prompt_token_ids)


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table of bytes: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    return table
