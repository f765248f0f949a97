"""Names for prefixes of a prompt, a KV row at a time."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

PrefixHash = bytes
_ROWS_PER_PIECE = 64


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
    _extend(hashes, array("q", token_ids[first:end]).tobytes(), tokens_per_row)


def _extend(hashes: list[PrefixHash], rows: bytes, tokens_per_row: int) -> None:
    row_bytes = tokens_per_row * array("q").itemsize
    name = hashes[-1] if hashes else b""
    for start in range(0, len(rows), row_bytes):
        digest = hashlib.blake2b(name, digest_size=16)
        digest.update(rows[start : start + row_bytes])
        name = digest.digest()
        hashes.append(name)


class HashedPieces:
    """Hashes of pieces of prompts, by the tokens themselves: of prompts that start alike, only the first is hashed."""

    def __init__(self, num_pieces: int = 1024) -> None:
        """The default, of rows of 16 tokens, is a million tokens in some 11 MB."""
        self._num_pieces = num_pieces
        self._hashes: OrderedDict[tuple[PrefixHash, bytes], list[PrefixHash]] = OrderedDict()  # oldest use first

    def extend(self, hashes: list[PrefixHash], token_ids: Sequence[int], tokens_per_row: int) -> None:
        """Continues the hashes as `extend_hashes` does."""
        if len(hashes) % _ROWS_PER_PIECE == 0:
            piece_tokens = _ROWS_PER_PIECE * tokens_per_row
            first = len(hashes) * tokens_per_row
            for start in range(first, len(token_ids) - piece_tokens + 1, piece_tokens):
                piece = array("q", token_ids[start : start + piece_tokens]).tobytes()
                self._extend_by_piece(hashes, piece, tokens_per_row)
        extend_hashes(hashes, token_ids, tokens_per_row)

    def _extend_by_piece(self, hashes: list[PrefixHash], piece: bytes, tokens_per_row: int) -> None:
        key = (hashes[-1] if hashes else b"", piece)
        known = self._hashes.get(key)
        if known is not None:
            self._hashes.move_to_end(key)
            hashes += known
            return
        _extend(hashes, piece, tokens_per_row)
        self._hashes[key] = hashes[-_ROWS_PER_PIECE:]
        if len(self._hashes) > self._num_pieces:
            self._hashes.popitem(last=False)
