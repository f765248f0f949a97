"""Decides what may be shown of a request's tokens: text, stop strings, log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.serving.frames import PromptToken, TokenLogprob, TopLogprob
from pdmux_actor.serving.token_text import TokenBytes, token_text


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
