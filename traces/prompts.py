"""Prompts of an exact length, as token ids."""

import numpy as np

from traces.errors import BadParameter
from traces.record import TraceRecord

# Printable ASCII characters both where vocabularies begin with the characters of byte-level BPE (GPT-2's, Llama 3's,
# Qwen's; SmolLM2's after 17 special tokens) and where they begin with 3 special tokens and the bytes (Llama 2's).
# Other bytes are halves of characters, and models answer those with more of them.
FIRST_TOKEN_ID = 36
DEFAULT_VOCAB_SIZE = 94
_SHARED, _OWN = 0, 1
_UINT64 = 2**64 - 1


def prompt_token_ids(
    record: TraceRecord, *, index: int, block_tokens: int | None, seed: int, vocab_size: int = DEFAULT_VOCAB_SIZE
) -> list[int]:
    """Exactly `record.input_tokens` ids in [FIRST_TOKEN_ID, vocab_size).

    A block's ids depend on its hash and the seed only, so that requests share what their hashes say they share; what no
    hash covers depends on `index`, the request's place in the trace.

    Raises:
        BadParameter: the vocabulary is too small, or the record has block hashes and no block size is given.
    """
    if vocab_size <= FIRST_TOKEN_ID:
        raise BadParameter(name="vocab_size", value=vocab_size, remedy=f"give more than {FIRST_TOKEN_ID}")
    if record.prefix_block_hashes and (block_tokens is None or block_tokens < 1):
        raise BadParameter(
            name="block_tokens",
            value=block_tokens,
            remedy="give the trace's tokens per block; its requests name blocks",
        )
    ids: list[int] = []
    if block_tokens is not None:
        for block in record.prefix_block_hashes:
            if len(ids) >= record.input_tokens:
                break
            ids += _draw((seed, _SHARED, block & _UINT64), block_tokens, vocab_size)
    missing = record.input_tokens - len(ids)
    if missing > 0:
        ids += _draw((seed, _OWN, index), missing, vocab_size)
    return ids[: record.input_tokens]


def _draw(key: tuple[int, int, int], count: int, vocab_size: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(key).integers(FIRST_TOKEN_ID, vocab_size, size=count).tolist()
    return drawn
