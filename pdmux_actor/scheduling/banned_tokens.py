"""Tells whether a request's own parameters leave no token that may follow, once a launch found none for it."""

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from pdmux_actor.scheduling.sequence import TokenSequence

_WORD_BITS = 32


def ban_of_all(sequence: TokenSequence, vocab_size: int, eos_token_ids: Set[int]) -> tuple[str, str] | None:
    """Returns the parameter that bans all that may follow, and what is wrong with it; None: none does."""
    sampling = sequence.request.sampling
    banned = set() if sampling.processing is None else set(sampling.processing.banned_after(sequence.token_ids))
    allowed = _allowed(sequence, vocab_size)
    place = f"at output token {sequence.num_output_tokens + 1}"
    if banned and sequence.constraint is not None and bool(np.isin(allowed, list(banned)).all()):
        return "bad_words", f"{place} it bans every token that the form allows"
    param = "bad_words" if banned else "min_tokens"
    if sequence.num_output_tokens < sampling.min_tokens:
        banned |= {*eos_token_ids, *sampling.stop_token_ids}
    if banned and bool(np.isin(allowed, list(banned)).all()):
        return param, f"{place} it leaves no token that may follow"
    return None


def _allowed(sequence: TokenSequence, vocab_size: int) -> npt.NDArray[np.int64]:
    """All tokens, or those that the form allows."""
    if sequence.constraint is None:
        return np.arange(vocab_size)
    words = np.zeros(-(-vocab_size // _WORD_BITS), dtype=np.int32)
    sequence.constraint.fill_mask(sequence.token_ids, words)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
