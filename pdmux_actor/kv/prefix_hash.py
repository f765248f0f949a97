"""Names for prefixes of a prompt, a KV row at a time."""

import hashlib
from array import array
from collections.abc import Sequence

PrefixHash = bytes


def extend_hashes(hashes: list[PrefixHash], token_ids: Sequence[int], tokens_per_row: int) -> None:
    """Appends the hashes of rows that `token_ids` fill and `hashes` lacks; hash i names tokens [0, (i+1) * row).

    BLAKE2b, since a collision would show one user another user's cached context: a fast hash that a client can steer
    will not do. The names are the same in every process.

    >>> short, long = [], []
    >>> extend_hashes(short, range(8), 4)
    >>> extend_hashes(long, range(11), 4)
    >>> len(short), long == short
    (2, True)
    """
    for row in range(len(hashes), len(token_ids) // tokens_per_row):
        digest = hashlib.blake2b(hashes[-1] if hashes else b"", digest_size=16)
        digest.update(array("q", token_ids[row * tokens_per_row : (row + 1) * tokens_per_row]).tobytes())
        hashes.append(digest.digest())
