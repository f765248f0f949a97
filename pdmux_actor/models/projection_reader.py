"""Reads projections from a checkpoint: what one rank has of them, several side by side in one product."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from pdmux_actor.models.linear import MakeProjection, Projection
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.tensor_reader import TensorPart, TensorReader

RowsByName = Mapping[str, tuple[int, TensorPart | None]]
"""By the name of a projection the rows that this rank has, and which they are of all."""


class BytesInFlight:
    """Admits at most `limit_bytes` at once, or one that is larger."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Waits until others have left room."""
        with self._changed:
            # no deadline: who holds room reads a tensor, lays it out and lets go, also when it raises
            self._changed.wait_for(lambda: not self._held_bytes or self._held_bytes + num_bytes <= self._limit_bytes)
            self._held_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= num_bytes
                self._changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionReader:
    """`make` makes a projection of what was read, within what may be `in_flight`. `is_quantised`: levels are made of
    all columns, also where a rank has some of them.
    """

    tensors: TensorReader
    in_flight: BytesInFlight
    make: MakeProjection
    share: RankShare
    is_quantised: bool

    def by_rows(self, rows: RowsByName, in_size: int, *, has_bias: bool) -> Projection:
        """One product of several projections, one behind the other."""
        sizes = {f"{name}.weight": size for name, (size, _) in rows.items()}
        with self.in_flight.hold(sum(sizes.values()) * in_size * self.tensors.dtype.itemsize):
            weight = self.tensors.load_product(sizes, in_size, {f"{n}.weight": part for n, (_, part) in rows.items()})
            return self.make(weight, self.bias(rows) if has_bias else None)

    def by_columns(self, name: str, out_size: int, in_size: int, *, has_bias: bool) -> Projection:
        """A projection whose products are summed over ranks: the bias is one rank's."""
        times = self.share.num_ranks if self.is_quantised else 1
        with self.in_flight.hold(out_size * in_size * times * self.tensors.dtype.itemsize):
            weight_name = f"{name}.weight"
            weight = self.tensors.load_product({weight_name: out_size}, in_size, {weight_name: self.share.columns})
            return self.make(weight, self.bias({name: (out_size, None)}) if has_bias and self.share.leads else None)

    def bias(self, rows: RowsByName) -> Tensor:
        sizes = {f"{name}.bias": size for name, (size, _) in rows.items()}
        return self.tensors.load_stacked(sizes, parts={f"{name}.bias": part for name, (_, part) in rows.items()})
