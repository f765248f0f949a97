"""Decides what may be shown of a request's tokens: text, stop strings, log-probabilities.

Ids become text a token at a time, never splitting a character, in one of two ways, by the tokenizer's decoder.
Byte-level BPE maps every token to bytes, so an incremental UTF-8 decoder gives exactly the text of decoding all ids at
once. For any other decoder a token's text depends on its neighbours (a leading space, runs of byte tokens), so a window
of the last tokens is decoded again and what is new is taken from it.
"""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from tokenizers import Tokenizer, pre_tokenizers

from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.serving.frames import PromptToken, TokenLogprob, TopLogprob

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


@dataclass(frozen=True, slots=True)
class Released:
    """`text` may be shown. With `stop` nothing may follow: it ends where that stop string, the first, began, or where
    it ended if it is shown.
    """

    text: str
    stop: str = ""


class StopStrings:
    """Holds back whole pieces while a stop string may be forming in them."""

    def __init__(self, stop: Sequence[str], *, shows_stop: bool = False) -> None:
        self._stop = tuple(s for s in stop if s)
        self._shows_stop = shows_stop
        self._pieces: list[str] = []

    @property
    def num_held_pieces(self) -> int:
        return len(self._pieces)

    def push(self, piece: str) -> Released:
        if not self._stop:
            return Released(piece)
        self._pieces.append(piece)
        held = "".join(self._pieces)
        starts = [(start, s) for s in self._stop if (start := held.find(s)) >= 0]
        if starts:
            self._pieces.clear()
            start, stop = min(starts, key=lambda found: found[0])
            return Released(held[: start + len(stop)] if self._shows_stop else held[:start], stop)
        free_chars = len(held) - max(_overlap(held, s) for s in self._stop)
        return Released(self._release(free_chars))

    def flush(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def _release(self, free_chars: int) -> str:
        """The longest run of whole pieces within `free_chars`."""
        count = length = 0
        while count < len(self._pieces) and length + len(self._pieces[count]) <= free_chars:
            length += len(self._pieces[count])
            count += 1
        text = "".join(self._pieces[:count])
        del self._pieces[:count]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with.

    >>> _overlap("abcEN", "END"), _overlap("abc", "END")
    (2, 0)
    """
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that became showable. `num_tokens` were read; with `stop`, the string that ends it, they can be fewer than
    were given.
    """

    text: str
    num_tokens: int
    stop: str = ""


class Vocabulary:
    """A model's tokenizer as its requests need it. Shared by them; holds no state of a request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.token_bytes = TokenBytes(tokenizer)

    def logprob(self, sampled: SampledToken) -> TokenLogprob:
        assert sampled.logprob is not None
        token, token_bytes = self._shown(sampled.token_id)
        return TokenLogprob(token, sampled.logprob, token_bytes, [self._alternative(*top) for top in sampled.top])

    def prompt(self, first: int, rest: Sequence[PromptLogprob]) -> tuple[PromptToken, ...]:
        """A prompt that begins with the token `first`, and how probable the others were."""
        of = self.token_bytes.of
        tokens = [
            PromptToken(token_id, of(token_id), logprob, rank, tuple([(one, of(one), p) for one, p in top]))
            for token_id, logprob, rank, top in rest
        ]
        return (PromptToken(first, of(first)), *tokens)

    def _alternative(self, token_id: int, logprob: float) -> TopLogprob:
        token, token_bytes = self._shown(token_id)
        return TopLogprob(token, logprob, token_bytes)

    def _shown(self, token_id: int) -> tuple[str, list[int]]:
        token_bytes = self.token_bytes.of(token_id)
        return token_bytes.decode(errors="replace"), list(token_bytes)


class Detokenizer:
    """One request's output. Text comes out in whole tokens: a token is held back with all of its text."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        prompt_token_ids: Sequence[int] = (),
        prior_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shows_stop: bool = False,
    ) -> None:
        """`prior_token_ids` were produced elsewhere: their text is out, except that of an incomplete character.

        Stop strings are looked for in what comes after the first `min_tokens` tokens. With `shows_stop` the one that
        ends the text, or the text of the token that does, is part of it.
        """
        self._text = token_text(vocabulary.tokenizer, vocabulary.token_bytes, prompt_token_ids)
        self._token_bytes = vocabulary.token_bytes
        self._skips_special = skip_special_tokens
        self._shows_stop = shows_stop
        self._stop = StopStrings(stop, shows_stop=shows_stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._open_tokens = 0  # tokens whose last character is incomplete
        self._held_pieces: list[int] = []  # tokens of each piece that a stop string holds back
        self.push(prior_token_ids)
        # What they end in may look like the start of a stop string. Elsewhere more was known: none starts in them.
        self._stop.flush()
        self._held_pieces.clear()

    @property
    def held_back_tokens(self) -> int:
        return self._open_tokens + sum(self._held_pieces)

    def push(self, token_ids: Sequence[int], *, ends: bool = False) -> Piece:
        """Reads tokens until a stop string is complete; nothing may follow a piece that `stopped`. `ends`: the last of
        them ended the sequence, and is no text unless that is shown.
        """
        texts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            self._open_tokens += 1
            is_end = ends and count == len(token_ids) and not self._shows_stop
            piece = self._piece(token_id, is_end=is_end)
            if piece is None:
                continue
            if stop := self._release(piece, texts):
                return Piece(text="".join(texts), num_tokens=count, stop=stop)
        return Piece(text="".join(texts), num_tokens=len(token_ids))

    def finish(self) -> Piece:
        """All that was held back; an incomplete character is shown as U+FFFD."""
        texts: list[str] = []
        if self._open_tokens and (stop := self._release(self._text.flush(), texts)):
            return Piece(text="".join(texts), num_tokens=0, stop=stop)
        texts.append(self._stop.flush())
        self._held_pieces.clear()
        return Piece(text="".join(texts), num_tokens=0)

    def _piece(self, token_id: int, *, is_end: bool) -> str | None:
        if is_end:
            return self._text.flush()
        if self._skips_special or not self._token_bytes.is_special(token_id):
            return self._text.push(token_id)
        return self._text.flush() + self._token_bytes.of(token_id).decode()

    def _release(self, piece: str, texts: list[str]) -> str:
        """Adds what may be shown; returns the stop string that is complete, else ""."""
        num_tokens, self._open_tokens = self._open_tokens, 0
        if self._num_tokens <= self._min_tokens:
            texts.append(piece)
            return ""
        self._held_pieces.append(num_tokens)
        released = self._stop.push(piece)
        texts.append(released.text)
        del self._held_pieces[: len(self._held_pieces) - self._stop.num_held_pieces]
        return released.stop
