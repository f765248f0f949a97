"""Who owns which token block. Pure bookkeeping: ids, no tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.geometry import KvGeometry


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUsage:
    used_blocks: int
    quota_blocks: int


class _ModelRows:
    """Rows of one model; a row is `blocks_per_row` blocks for the same tokens (see KvGeometry)."""

    __slots__ = ("free_rows", "geometry", "quota_blocks", "table", "used_rows")

    def __init__(self, geometry: KvGeometry, max_rows: int, quota_blocks: int) -> None:
        self.geometry = geometry
        self.quota_blocks = quota_blocks
        self.table: npt.NDArray[np.int64] = np.zeros((max_rows, geometry.blocks_per_row), dtype=np.int64)
        self.free_rows = list(range(max_rows - 1, -1, -1))
        self.used_rows = 0

    @property
    def used_blocks(self) -> int:
        return self.used_rows * self.geometry.blocks_per_row

    @property
    def allocatable_rows(self) -> int:
        """Rows the quota still admits; negative after the quota shrank below what is held."""
        return self.quota_blocks // self.geometry.blocks_per_row - self.used_rows


class BlockPool:
    """One pool of equal blocks, shared by models of any shape (MuxServe's head-wise cache), under per-model quotas.

    A block belongs to at most one row. The sum of quotas never exceeds the pool, so what a quota admits is there,
    except while another model still holds more than a quota that was lowered under it.
    """

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._free: npt.NDArray[np.int64] = np.arange(total_blocks, dtype=np.int64)
        self._num_free = total_blocks
        self._models: dict[str, _ModelRows] = {}

    @property
    def free_blocks(self) -> int:
        return self._num_free

    def add_model(self, model: str, geometry: KvGeometry, quota_blocks: int) -> npt.NDArray[np.int64]:
        """Returns the row table `[max_rows, blocks_per_row]`, which allocation fills in place."""
        assert model not in self._models, f"{model} is in the pool already"
        rows = _ModelRows(geometry, self.total_blocks // geometry.blocks_per_row, quota_blocks)
        self._models[model] = rows
        return rows.table

    def remove_model(self, model: str) -> None:
        assert self._models[model].used_rows == 0, f"{model} still holds rows"
        del self._models[model]

    def set_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        """A quota below what the model holds takes nothing away: the model gets no more until it is below."""
        for model, quota in quota_blocks.items():
            self._models[model].quota_blocks = quota

    def allocatable_rows(self, model: str) -> int:
        rows = self._models[model]
        return min(rows.allocatable_rows, self._num_free // rows.geometry.blocks_per_row)

    def quota_rows(self, model: str) -> int:
        rows = self._models[model]
        return rows.quota_blocks // rows.geometry.blocks_per_row

    def allocate_rows(self, model: str, count: int) -> list[int] | None:
        """`count` rows, or None when quota or pool do not admit them all."""
        rows = self._models[model]
        if count > self.allocatable_rows(model):
            return None
        row_ids = rows.free_rows[-count:] if count else []
        del rows.free_rows[len(rows.free_rows) - count :]
        num_blocks = count * rows.geometry.blocks_per_row
        blocks = self._free[self._num_free - num_blocks : self._num_free]
        rows.table[row_ids] = blocks.reshape(count, -1)
        self._num_free -= num_blocks
        rows.used_rows += count
        return row_ids

    def free_rows(self, model: str, row_ids: Sequence[int]) -> None:
        if not row_ids:
            return
        rows = self._models[model]
        num_blocks = len(row_ids) * rows.geometry.blocks_per_row
        self._free[self._num_free : self._num_free + num_blocks] = rows.table.take(row_ids, axis=0).ravel()
        self._num_free += num_blocks
        rows.free_rows.extend(row_ids)
        rows.used_rows -= len(row_ids)

    def usage(self, model: str) -> BlockUsage:
        rows = self._models[model]
        return BlockUsage(used_blocks=rows.used_blocks, quota_blocks=rows.quota_blocks)

    def check_integrity(self) -> None:
        """Asserts that free + owned == total and that no block is owned twice."""
        owned = [np.delete(rows.table, rows.free_rows, axis=0).ravel() for rows in self._models.values()]
        blocks = np.concatenate([self._free[: self._num_free], *owned])
        assert len(blocks) == self.total_blocks, f"{len(blocks)} blocks accounted for, {self.total_blocks} exist"
        assert len(np.unique(blocks)) == self.total_blocks, "a block is owned twice"
        for model, rows in self._models.items():
            assert len(set(rows.free_rows)) == len(rows.table) - rows.used_rows, f"rows of {model} do not add up"
