"""Tells whether a request's bad words leave anything of its form, once a launch found no token for it."""

import numpy as np

from pdmux_actor.scheduling.sequence import TokenSequence

_WORD_BITS = 32


def bans_all_of_form(sequence: TokenSequence, vocab_size: int) -> bool:
    """Says whether every token that the sequence's form allows next would complete one of its bad words."""
    processing = sequence.request.sampling.processing
    if sequence.constraint is None or processing is None or not processing.bad_words:
        return False
    words = np.zeros(-(-vocab_size // _WORD_BITS), dtype=np.int32)
    sequence.constraint.fill_mask(sequence.token_ids, words)
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    return bool(np.isin(allowed, processing.banned_after(sequence.token_ids)).all())
