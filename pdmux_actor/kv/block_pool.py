"""Keeps account of who owns which token block. Pure bookkeeping: ids, no tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.kv.prefix_cache import IdleRows, PrefixCache, PrefixHash, PrefixMatch

Blocks = npt.NDArray[np.int64]

_WRITTEN_AHEAD = 4096
_ROWS_AHEAD = 16


class FreeBlocks:
    """A stack of block ids. Below `_lowest` it has never been popped: place i stands for block i, written when it is
    needed.
    """

    def __init__(self, total_blocks: int) -> None:
        self._stack: Blocks = np.empty(total_blocks, dtype=np.int64)
        self._lowest = total_blocks
        self._count = total_blocks

    def pop(self, num_blocks: int) -> Blocks:
        """A view: good until the next call."""
        top = self._count
        self._count -= num_blocks
        if self._count < self._lowest:
            lowest = max(0, self._count - _WRITTEN_AHEAD)
            self._stack[lowest : self._lowest] = np.arange(lowest, self._lowest)
            self._lowest = lowest
        return self._stack[self._count : top]

    def push(self, blocks: Blocks) -> None:
        self._stack[self._count : self._count + len(blocks)] = blocks
        self._count += len(blocks)

    def all(self) -> Blocks:
        """Returns all free blocks, in no order."""
        return np.concatenate([np.arange(self._lowest), self._stack[self._lowest : self._count]])


class BlocksOfRanks(FreeBlocks):
    """Free blocks where each of `num_ranks` pools gives up the block of one name at once: names for one of them."""

    def __init__(self, total_blocks: int, num_ranks: int) -> None:
        super().__init__(total_blocks // num_ranks)
        self._num_ranks = num_ranks

    def pop(self, num_blocks: int) -> Blocks:
        return super().pop(num_blocks // self._num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUsage:
    """`used_blocks` beyond the quota are borrowed; `cached_blocks` hold prefixes that nobody uses."""

    used_blocks: int
    quota_blocks: int
    cached_blocks: int

    @property
    def borrowed_blocks(self) -> int:
        return max(0, self.used_blocks - self.quota_blocks)


class _ModelRows:
    """Rows of one model; a row is `blocks_per_row` blocks for the same tokens (see KvGeometry).

    A row is free, used (by `references[row]` sequences) or cached (by none, but a prefix lives in it). Those from
    `new_row` on were never used: they lie below the stack of free rows, and are written onto it when they are needed.
    """

    __slots__ = (
        "blocks_per_row",
        "cache",
        "free_rows",
        "leased_blocks",
        "max_rows",
        "new_row",
        "num_cached",
        "quota_blocks",
        "references",
        "table",
    )

    def __init__(self, geometry: KvGeometry, max_rows: int, quota_blocks: int, *, names_per_row: int | None) -> None:
        self.blocks_per_row = geometry.blocks_per_row
        self.leased_blocks = quota_blocks
        self.quota_blocks = quota_blocks  # what is leased, and what transfers have moved here or away since
        named_rows = 0 if names_per_row is None else max_rows
        self.table: Blocks = np.zeros((named_rows, names_per_row or geometry.blocks_per_row), dtype=np.int64)
        self.max_rows = max_rows
        self.new_row = 0
        self.free_rows: list[int] = []
        self.references: dict[int, int] = {}
        self.cache = PrefixCache()
        self.num_cached = 0

    def pop(self, count: int) -> list[int]:
        short = count - len(self.free_rows)
        if short > 0:
            written = min(self.max_rows, self.new_row + short + _ROWS_AHEAD)
            self.free_rows[:0] = range(written - 1, self.new_row - 1, -1)
            self.new_row = written
        row_ids = self.free_rows[len(self.free_rows) - count :]
        del self.free_rows[len(self.free_rows) - count :]
        return row_ids

    @property
    def used_blocks(self) -> int:
        return len(self.references) * self.blocks_per_row

    @property
    def quota_left_blocks(self) -> int:
        """Negative while the model borrows."""
        return self.quota_blocks - self.used_blocks


class BlockPool:
    """One pool of equal blocks, shared by models of any shape (MuxServe's head-wise cache), under per-model quotas.

    free + used + cached == total, always. A model is sure of its quota (the quotas sum to no more than the pool): what
    it lacks is taken from cached prefixes, then from models that hold more than theirs (`missing_blocks` says how much;
    taking it is the scheduler's part). Beyond its quota a model may borrow what is idle, up to `lendable_share` of it.

    Without `names_blocks` the pool counts and tables stay empty: in a simulation nobody asks which blocks a row has.
    Of `num_ranks` equal pools it counts all blocks; a row has as many of each, at the same places, named once.
    """

    def __init__(
        self, total_blocks: int, *, lendable_share: float = 0.0, names_blocks: bool = True, num_ranks: int = 1
    ) -> None:
        self.total_blocks = total_blocks
        self._lendable_share = lendable_share
        self._num_ranks = num_ranks
        self._free = self._named() if names_blocks else None
        self._num_free = total_blocks
        self._models: dict[str, _ModelRows] = {}
        self._idle = IdleRows()
        self._cached_blocks = 0
        self._claims: Mapping[str, int] = {}

    @property
    def free_blocks(self) -> int:
        return self._num_free

    @property
    def cached_blocks(self) -> int:
        return self._cached_blocks

    def resize(self, total_blocks: int) -> None:
        """Gives a pool that no model is in another number of blocks."""
        assert not self._models, "blocks of a model would be lost"
        self.total_blocks = self._num_free = total_blocks
        self._free = None if self._free is None else self._named()

    def _named(self) -> FreeBlocks:
        if self._num_ranks == 1:
            return FreeBlocks(self.total_blocks)
        return BlocksOfRanks(self.total_blocks, self._num_ranks)

    def add_model(self, model: str, geometry: KvGeometry, quota_blocks: int) -> Blocks:
        """Returns the row table `[max_rows, blocks_per_row]`, which allocation fills in place."""
        assert model not in self._models, f"{model} is in the pool already"
        max_rows = self.total_blocks // geometry.blocks_per_row
        names = None if self._free is None else geometry.blocks_per_row // self._num_ranks
        rows = _ModelRows(geometry, max_rows, quota_blocks, names_per_row=names)
        self._models[model] = rows
        self._idle.add_model(model)
        return rows.table

    def remove_model(self, model: str) -> None:
        assert not self._models[model].references, f"{model} still holds rows"
        for row in list(self._idle.of(model)):
            self._evict(model, row)
        self._idle.remove_model(model)
        del self._models[model]
        self._undo_transfers()

    def set_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        """New leases; all that transfers have moved goes back, so that quotas sum to what is leased.

        A quota below what the model holds takes nothing away at once: it makes the rest borrowed.
        """
        for model, quota in quota_blocks.items():
            self._models[model].leased_blocks = quota
        self._undo_transfers()

    def transfer_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        """Moves quota between models until leases change; makes none."""
        before = sum(self._models[model].quota_blocks for model in quota_blocks)
        assert sum(quota_blocks.values()) == before, f"a transfer makes quota: {before} blocks become {quota_blocks}"
        for model, quota in quota_blocks.items():
            self._models[model].quota_blocks = quota

    def set_claims(self, claimed_blocks: Mapping[str, int]) -> None:
        """Blocks that models are about to take within their quotas: others may not borrow them."""
        self._claims = claimed_blocks

    def used_blocks(self, model: str) -> int:
        rows = self._models[model]
        return len(rows.references) * rows.blocks_per_row

    def quota_blocks(self, model: str) -> int:
        return self._models[model].quota_blocks

    def leased_blocks(self, model: str) -> int:
        """The quota without what transfers have moved."""
        return self._models[model].leased_blocks

    def quota_rows(self, model: str) -> int:
        rows = self._models[model]
        return rows.quota_blocks // rows.blocks_per_row

    def borrowed_blocks(self, model: str) -> int:
        return max(0, -self._models[model].quota_left_blocks)

    def allocatable_rows(self, model: str, *, reusing: Sequence[int] = ()) -> int:
        """New rows the model can have when it also uses the rows `reusing` of its cache."""
        return self._allocatable_rows(model, self._num_idle(model, reusing))

    def can_allocate(self, model: str, num_rows: int, *, reusing: Sequence[int]) -> bool:
        """`num_rows <= allocatable_rows(model, reusing=reusing)`: a long prefix is counted only where that matters."""
        most_idle = min(len(reusing), self._models[model].num_cached)
        if num_rows <= self._allocatable_rows(model, most_idle):
            return True
        if num_rows > self._allocatable_rows(model, 0):
            return False
        return num_rows <= self._allocatable_rows(model, self._num_idle(model, reusing))

    def _num_idle(self, model: str, row_ids: Sequence[int]) -> int:
        references = self._models[model].references
        return sum(1 for row in row_ids if row not in references)

    def _allocatable_rows(self, model: str, num_revived: int) -> int:
        """The fewer, the more cached rows come into use with them."""
        rows = self._models[model]
        per_row = rows.blocks_per_row
        revived_blocks = per_row * num_revived
        obtainable = self._num_free + self._cached_blocks - revived_blocks
        quota_left = rows.quota_left_blocks - revived_blocks
        claimed = sum([blocks for other, blocks in self._claims.items() if other != model])
        lendable = int(self._lendable_share * (obtainable - max(0, quota_left) - claimed))
        return max(0, min(obtainable, max(0, quota_left) + max(0, lendable))) // per_row

    def missing_blocks(self, model: str, num_rows: int) -> int:
        """Blocks of the model's own quota that others hold, of those it needs for `num_rows` more rows."""
        rows = self._models[model]
        needed = num_rows * rows.blocks_per_row
        if needed > rows.quota_left_blocks:
            return 0  # not within its rights
        return max(0, needed - self._num_free - self._cached_blocks)

    def allocate_rows(self, model: str, count: int) -> list[int] | None:
        """`count` rows used by one sequence, or None when quota or pool do not admit them all."""
        if count > self._allocatable_rows(model, 0):
            return None
        rows = self._models[model]
        num_blocks = count * rows.blocks_per_row
        while self._num_free < num_blocks:
            self._evict(*self._idle.oldest())
        row_ids = rows.pop(count)
        self._num_free -= num_blocks
        if self._free is not None:
            rows.table[row_ids] = self._free.pop(num_blocks).reshape(count, rows.table.shape[1])
        rows.references.update(dict.fromkeys(row_ids, 1))
        return row_ids

    def prefix_version(self, model: str) -> int:
        """Another one whenever a prefix of the model comes into its cache or goes."""
        return self._models[model].cache.version

    def match_prefix(self, model: str, hashes: Sequence[PrefixHash], known: PrefixMatch | None = None) -> list[int]:
        """Rows of the longest cached prefix, to be read only; `reuse_rows` makes them the caller's. `known` is what the
        caller was told of this prompt before.
        """
        return self._models[model].cache.match(hashes, known)

    def reuse_rows(self, model: str, row_ids: Sequence[int]) -> None:
        rows = self._models[model]
        for row in row_ids:
            if row in rows.references:
                rows.references[row] += 1
            else:
                self._idle.remove(model, row)
                rows.num_cached -= 1
                self._cached_blocks -= rows.blocks_per_row
                rows.references[row] = 1

    def cache_prefix(
        self, model: str, hashes: Sequence[PrefixHash], row_ids: Sequence[int], num_reused: int = 0
    ) -> None:
        """The rows, in use, hold the KV of these prefixes and will not be written again. The first `num_reused` are in
        the cache, where `reuse_rows` took them from.
        """
        self._models[model].cache.insert(hashes, row_ids, num_reused)

    def free_rows(self, model: str, row_ids: Sequence[int]) -> None:
        """One sequence less uses the rows. From the end of its tokens to the start: see PrefixCache."""
        rows = self._models[model]
        freed: list[int] = []
        for row in reversed(row_ids):
            left = rows.references[row] - 1
            if left:
                rows.references[row] = left
                continue
            del rows.references[row]
            if rows.cache.holds(row):
                self._idle.add(model, row)
                rows.num_cached += 1
                self._cached_blocks += rows.blocks_per_row
            else:
                freed.append(row)
        self._give_back(rows, freed)

    def usage(self, model: str) -> BlockUsage:
        rows = self._models[model]
        return BlockUsage(
            used_blocks=rows.used_blocks,
            quota_blocks=rows.quota_blocks,
            cached_blocks=rows.num_cached * rows.blocks_per_row,
        )

    def check_integrity(self) -> None:
        """Asserts that free + used + cached == total and that no block is in two rows."""
        if self._free is not None:
            tables = [(rows.table[: rows.new_row], rows.free_rows) for rows in self._models.values()]
            owned = [np.delete(table, free_rows, axis=0).ravel() for table, free_rows in tables]
            blocks = np.concatenate([self._free.all(), *owned])
            names = self.total_blocks // self._num_ranks
            assert len(blocks) == names, f"{len(blocks)} blocks accounted for, {names} exist"
            assert len(np.unique(blocks)) == names, "a block is in two rows"
        used = sum(rows.used_blocks for rows in self._models.values())
        assert self._num_free + used + self._cached_blocks == self.total_blocks, "the books do not balance"
        for model, rows in self._models.items():
            idle = set(self._idle.of(model))
            assert rows.num_cached == len(idle), f"cached rows of {model} are miscounted"
            states = (set(rows.free_rows), set(rows.references), idle)
            assert sum(map(len, states)) == rows.new_row == len(set.union(*states)), f"a row of {model} is lost"
            assert rows.new_row <= rows.max_rows == self.total_blocks // rows.blocks_per_row, f"{model} has other rows"

    def _undo_transfers(self) -> None:
        """Else a model that leaves would take others' quota along, or leave its own behind."""
        for rows in self._models.values():
            rows.quota_blocks = rows.leased_blocks

    def _evict(self, model: str, row: int) -> None:
        self._idle.remove(model, row)
        rows = self._models[model]
        rows.cache.forget(row)
        rows.num_cached -= 1
        self._cached_blocks -= rows.blocks_per_row
        self._give_back(rows, [row])

    def _give_back(self, rows: _ModelRows, row_ids: Sequence[int]) -> None:
        if not row_ids:
            return
        self._num_free += len(row_ids) * rows.blocks_per_row
        if self._free is not None:
            self._free.push(rows.table.take(row_ids, axis=0).ravel())
        rows.free_rows.extend(row_ids)
