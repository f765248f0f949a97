"""Knows which rows hold which prefix of one model, and names prefixes. Rows that nobody uses stay until their blocks
are needed, and go in the order of their last use.
"""

import hashlib
import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PrefixHash = bytes
TOKEN_BYTES = 8
_ROWS_PER_PIECE = 64
_ROW_BITS = 32
_FEWEST_STALE = 1024  # entries of idle rows, before their order is written anew


def prefix_root(cache_salt: str, kv_space: str = "") -> PrefixHash:
    """Names the empty prefix of a salt: no name of any prefix is that of another salt's, or of another `kv_space`: what
    other weights computed.

    >>> prefix_root(""), len(prefix_root("a")), prefix_root("a") == prefix_root("b")
    (b'', 16, False)
    >>> prefix_root("", "adapter 1") == prefix_root("", "adapter 2"), prefix_root("a", "b") == prefix_root("b", "a")
    (False, False)
    """
    if kv_space:
        space = hashlib.blake2b(kv_space.encode(), digest_size=16, person=b"kv space").digest()
        return hashlib.blake2b(cache_salt.encode(), digest_size=16, person=b"cache salt", key=space).digest()
    if not cache_salt:
        return b""
    return hashlib.blake2b(cache_salt.encode(), digest_size=16, person=b"cache salt").digest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Returns what names of prefixes are hashed of: 8 bytes a token. An array takes twice as long to be made."""
    return struct.pack(f"{len(token_ids)}q", *token_ids)


def extend_hashes(
    hashes: list[PrefixHash], token_ids: Sequence[int], tokens_per_row: int, root: PrefixHash = b""
) -> None:
    """Appends the hashes of rows that `token_ids` fill and `hashes` lacks; hash i names tokens [0, (i+1) * row) behind
    the `root`.

    BLAKE2b, since a collision would show one user another user's cached context: a fast hash that a client can steer
    will not do. The names are the same in every process.

    >>> short, long = [], []
    >>> extend_hashes(short, range(8), 4)
    >>> extend_hashes(long, range(11), 4)
    >>> len(short), long == short
    (2, True)
    """
    first, end = len(hashes) * tokens_per_row, len(token_ids) // tokens_per_row * tokens_per_row
    _extend(hashes, token_bytes(token_ids[first:end]), tokens_per_row, root)


def _extend(hashes: list[PrefixHash], rows: bytes, tokens_per_row: int, root: PrefixHash) -> None:
    row_bytes = tokens_per_row * TOKEN_BYTES
    name = hashes[-1] if hashes else root
    for start in range(0, len(rows), row_bytes):
        digest = hashlib.blake2b(name, digest_size=16)
        digest.update(rows[start : start + row_bytes])
        name = digest.digest()
        hashes.append(name)


class HashedPieces:
    """Hashes of pieces of prompts, by the tokens themselves: of prompts that start alike, only the first is hashed."""

    def __init__(self, most_tokens: int = 1 << 20) -> None:
        """The default takes some 11 MB, whatever the rows."""
        self._most_tokens = most_tokens
        self._num_tokens = 0
        self._hashes: OrderedDict[tuple[PrefixHash, bytes], list[PrefixHash]] = OrderedDict()  # oldest use first

    def extend(
        self, hashes: list[PrefixHash], token_ids: Sequence[int], tokens_per_row: int, root: PrefixHash = b""
    ) -> None:
        """Continues the hashes as `extend_hashes` does."""
        if len(hashes) % _ROWS_PER_PIECE == 0:
            piece_tokens = _ROWS_PER_PIECE * tokens_per_row
            first = len(hashes) * tokens_per_row
            for start in range(first, len(token_ids) - piece_tokens + 1, piece_tokens):
                piece = token_bytes(token_ids[start : start + piece_tokens])
                self._extend_by_piece(hashes, piece, tokens_per_row, root)
        extend_hashes(hashes, token_ids, tokens_per_row, root)

    def _extend_by_piece(self, hashes: list[PrefixHash], piece: bytes, tokens_per_row: int, root: PrefixHash) -> None:
        key = (hashes[-1] if hashes else root, piece)
        known = self._hashes.get(key)
        if known is not None:
            self._hashes.move_to_end(key)
            hashes += known
            return
        _extend(hashes, piece, tokens_per_row, root)
        self._hashes[key] = hashes[-_ROWS_PER_PIECE:]
        self._num_tokens += _ROWS_PER_PIECE * tokens_per_row
        while self._num_tokens > self._most_tokens:
            self._hashes.popitem(last=False)
            self._num_tokens -= _ROWS_PER_PIECE * tokens_per_row


@dataclass(slots=True, eq=False)
class PrefixMatch:
    """Holds what a cache held of one prompt when it was last asked. `PrefixCache.match` alone writes it.

    It still holds for as many full rows while the cache's `version` is the same.
    """

    rows: list[int] = field(default_factory=list)
    num_forgets: int = 0  # of the cache, at that time
    version: int = -1  # of the cache, at that time
    num_hashes: int = 0  # that were asked for


class PrefixCache:
    """A radix tree over row-sized pieces of prompts, kept as a map from the hash of a prefix to its last row.

    A prefix is cached only together with all shorter ones: users touch a prefix from its end to its start, so that of a
    chain the end is always the least recently used, and eviction in that order takes leaves first.
    """

    def __init__(self, remembered_forgets: int = 8192) -> None:
        """A match that saw none of so many forgets is made anew."""
        self.version = 0  # another one whenever a prefix comes or goes
        self._remembered_forgets = remembered_forgets
        self._row_of: dict[PrefixHash, int] = {}
        # By row. Arrays, not dicts and tuples: a simulated fleet caches a million rows.
        self._hash_of: list[PrefixHash | None] = []
        self._place_of = array("l")  # of a row in its prompt
        self._forgotten = array("q")  # the latest: place and row, in one
        self._num_forgets = 0

    def match(self, hashes: Sequence[PrefixHash], known: PrefixMatch | None = None) -> list[int]:
        """Rows of the longest cached prefix. Of `known`, this prompt's, only what has changed since is looked up."""
        known = known or PrefixMatch(num_forgets=self._num_forgets)
        known.version, known.num_hashes = self.version, len(hashes)
        rows, row_of = known.rows, self._row_of
        self._cut_forgotten(known)
        if len(rows) > len(hashes):
            del rows[len(hashes) :]
        for place in range(len(rows), len(hashes)):
            row = row_of.get(hashes[place])
            if row is None:
                break
            rows.append(row)
        return rows

    def insert(self, hashes: Sequence[PrefixHash], rows: Sequence[int], first: int = 0) -> None:
        """Row i holds the end of prefix i. A prefix that is cached already keeps the row it has; those before `first`
        are known to be.
        """
        self._make_room(max(rows, default=-1))
        for place in range(first, len(hashes)):
            prefix, row = hashes[place], rows[place]
            if prefix not in self._row_of and self._hash_of[row] is None:
                self._row_of[prefix] = row
                self._hash_of[row] = prefix
                self._place_of[row] = place
                self.version += 1

    def holds(self, row: int) -> bool:
        return row < len(self._hash_of) and self._hash_of[row] is not None

    def forget(self, row: int) -> None:
        prefix = self._hash_of[row]
        assert prefix is not None, "it holds no prefix"
        del self._row_of[prefix]
        self._hash_of[row] = None
        self._forgotten.append(self._place_of[row] << _ROW_BITS | row)
        self._num_forgets += 1
        self.version += 1
        if len(self._forgotten) > 2 * self._remembered_forgets:
            del self._forgotten[: self._remembered_forgets]

    def __len__(self) -> int:
        return len(self._row_of)

    def _make_room(self, row: int) -> None:
        missing = row + 1 - len(self._hash_of)
        if missing > 0:
            self._hash_of += [None] * missing
            self._place_of.extend([0] * missing)

    def _cut_forgotten(self, known: PrefixMatch) -> None:
        num_new = self._num_forgets - known.num_forgets
        known.num_forgets = self._num_forgets
        rows = known.rows
        if num_new > len(self._forgotten):
            rows.clear()
        elif num_new and rows:
            for forgotten in self._forgotten[-num_new:]:
                place, row = forgotten >> _ROW_BITS, forgotten & ~(-1 << _ROW_BITS)
                if place < len(rows) and rows[place] == row:
                    del rows[place:]


class IdleRows:
    """Cached rows that nobody uses, of all models of a pool, the least recently used first: in arrays, some 24 bytes a
    row that ever was, of which a simulated fleet has half a million.

    A row that comes into use leaves its entry in the order behind. Where the row itself says that it lies elsewhere, or
    nowhere, an entry is stale.
    """

    def __init__(self) -> None:
        self._order = array("q")  # the model's number and the row, in one
        self._first = 0  # of the entries; those before it are stale
        self._num_rows = 0
        self._number_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._place_of: dict[int, array[int]] = {}  # by the model's number, then by row; -1: not idle
        self._num_models = 0  # that ever were here: a number is given once

    def __len__(self) -> int:
        return self._num_rows

    def add_model(self, model: str) -> None:
        number = self._num_models
        self._num_models += 1
        self._number_of[model], self._name_of[number] = number, model
        self._place_of[number] = array("q")

    def remove_model(self, model: str) -> None:
        """None of its rows may be idle any more."""
        number = self._number_of.pop(model)
        del self._name_of[number], self._place_of[number]

    def of(self, model: str) -> Iterator[int]:
        """Returns the model's idle rows, in no order."""
        return (row for row, place in enumerate(self._place_of[self._number_of[model]]) if place >= 0)

    def add(self, model: str, row: int) -> None:
        """Makes it the most recently used."""
        number = self._number_of[model]
        places = self._place_of[number]
        if (missing := row + 1 - len(places)) > 0:
            places.extend([-1] * missing)
        places[row] = len(self._order)
        self._order.append(number << _ROW_BITS | row)
        self._num_rows += 1
        if len(self._order) > 2 * self._num_rows + _FEWEST_STALE:
            self._cut_stale()

    def remove(self, model: str, row: int) -> None:
        """It comes into use, or goes."""
        places = self._place_of[self._number_of[model]]
        assert places[row] >= 0, f"row {row} of {model} is not idle"
        places[row] = -1
        self._num_rows -= 1

    def oldest(self) -> tuple[str, int]:
        """Returns the model and the row that was used least recently. There must be one."""
        while not self._is_current(self._first):
            self._first += 1
        entry = self._order[self._first]
        return self._name_of[entry >> _ROW_BITS], entry & ~(-1 << _ROW_BITS)

    def _is_current(self, index: int) -> bool:
        entry = self._order[index]
        places = self._place_of.get(entry >> _ROW_BITS)
        return places is not None and places[entry & ~(-1 << _ROW_BITS)] == index

    def _cut_stale(self) -> None:
        """Entries that are current keep their order."""
        kept = array("q", [self._order[i] for i in range(self._first, len(self._order)) if self._is_current(i)])
        self._order, self._first = kept, 0
        for place, entry in enumerate(kept):
            self._place_of[entry >> _ROW_BITS][entry & ~(-1 << _ROW_BITS)] = place
