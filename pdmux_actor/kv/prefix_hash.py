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
    first, end = len(hashes) * tokens_per_row, len(token_ids) // tokens_per_row * tokens_per_row
    rows = array("q", token_ids[first:end]).tobytes()
    row_bytes = tokens_per_row * array("q").itemsize
    name = hashes[-1] if hashes else b""
    for start in range(0, len(rows), row_bytes):
        digest = hashlib.blake2b(name, digest_size=16)
        digest.update(rows[start : start + row_bytes])
        name = digest.digest()
        hashes.append(name)
