"""Says how probable a prompt's tokens were, in the shapes that clients know: OpenAI's for an echo, and vLLM's."""

from collections.abc import Iterable, Sequence
from typing import Any

from pdmux_actor.serving.frames import PromptToken

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; this is what peers send


def echoed_logprobs(prompt: Sequence[PromptToken], echo: str, alternatives: int) -> dict[str, list[Any]]:
    """OpenAI's legacy shape. Offsets count characters of `echo`: a token that is no part of it, as a special one that
    the tokenizer added, has the offset of what follows.
    """
    return {
        "tokens": [_text(one.token) for one in prompt],
        "token_logprobs": [None if one.logprob is None else max(one.logprob, LOWEST_LOGPROB) for one in prompt],
        "top_logprobs": [
            by_text((_text(token), logprob) for _, token, logprob in one.top[:alternatives]) for one in prompt
        ],
        "text_offset": _offsets([one.token for one in prompt], echo.encode()),
    }


def by_text(alternatives: Iterable[tuple[str, float]]) -> dict[str, float] | None:
    """Most probable first. Several tokens may look alike (parts of characters do): the most probable stays."""
    shown: dict[str, float] = {}
    for text, logprob in alternatives:
        shown.setdefault(text, max(logprob, LOWEST_LOGPROB))
    return shown or None


def prompt_logprobs(prompt: Sequence[PromptToken], alternatives: int) -> list[dict[str, Any] | None]:
    """VLLM's shape: by token id, the token itself and its alternatives; null for the first."""
    return [_of_token(one, alternatives) for one in prompt]


def _of_token(one: PromptToken, alternatives: int) -> dict[str, Any] | None:
    if one.logprob is None:
        return None
    entries = {str(one.token_id): _entry(one.token, one.logprob, one.rank)}
    for rank, (token_id, token, logprob) in enumerate(one.top[:alternatives], start=1):
        entries.setdefault(str(token_id), _entry(token, logprob, rank))
    return entries


def _entry(token: bytes, logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": max(logprob, LOWEST_LOGPROB), "rank": rank, "decoded_token": _text(token)}


def _text(token: bytes) -> str:
    return token.decode(errors="replace")


def _offsets(tokens: Iterable[bytes], text: bytes) -> list[int]:
    """The character of the UTF-8 `text` in which each token begins."""
    offsets, place, characters = [], 0, 0  # bytes that are behind, and characters that began in them
    for token in tokens:
        offsets.append(characters - begins_inside(text[place : place + 1]))
        known = token if place else token.removeprefix(b" ")  # SentencePiece puts a space before the first word
        for candidate in (token, known):
            if candidate and text.startswith(candidate, place):
                place += len(candidate)
                characters += num_characters(candidate)
                break
    return offsets


def begins_inside(utf8: Sequence[int]) -> bool:
    """Returns whether the first byte goes on a character that has begun before."""
    return bool(utf8) and _continues(utf8[0])


def num_characters(utf8: Iterable[int]) -> int:
    """Counts the characters that begin in these bytes."""
    return sum(not _continues(byte) for byte in utf8)


def _continues(byte: int) -> bool:
    """It is not the first byte of a character."""
    return byte & 0xC0 == 0x80
