"""Which rows hold which prefix, of one model. Rows that nobody uses stay until their blocks are needed."""

from collections.abc import Sequence

from pdmux_actor.kv.prefix_hash import PrefixHash


class PrefixCache:
    """A radix tree over row-sized pieces of prompts, kept as a map from the hash of a prefix to its last row.

    A prefix is cached only together with all shorter ones: users touch a prefix from its end to its start, so that of a
    chain the end is always the least recently used, and eviction in that order takes leaves first.
    """

    def __init__(self) -> None:
        self._row_of: dict[PrefixHash, int] = {}
        self._hash_of: dict[int, PrefixHash] = {}

    def match(self, hashes: Sequence[PrefixHash]) -> list[int]:
        """Rows of the longest cached prefix."""
        rows: list[int] = []
        for prefix in hashes:
            row = self._row_of.get(prefix)
            if row is None:
                break
            rows.append(row)
        return rows

    def insert(self, hashes: Sequence[PrefixHash], rows: Sequence[int]) -> None:
        """Row i holds the end of prefix i. A prefix that is cached already keeps the row it has."""
        for prefix, row in zip(hashes, rows, strict=True):
            if prefix not in self._row_of and row not in self._hash_of:
                self._row_of[prefix] = row
                self._hash_of[row] = prefix

    def holds(self, row: int) -> bool:
        return row in self._hash_of

    def forget(self, row: int) -> None:
        del self._row_of[self._hash_of.pop(row)]

    def __len__(self) -> int:
        return len(self._hash_of)
