"""Cached rows that nobody uses, of all models of a pool, in the order of their last use."""

from array import array
from collections.abc import Iterator

_ROW_BITS = 32
_FEWEST_STALE = 1024  # entries, before the order is written anew


class IdleRows:
    """The least recently used first, in arrays: some 24 bytes a row, of which a simulated fleet has half a million.

    A row that comes into use leaves its entry in the order behind. Where the row itself says that it lies elsewhere, or
    nowhere, an entry is stale.
    """

    def __init__(self) -> None:
        self._order = array("q")  # the model's number and the row, in one
        self._first = 0  # of the entries; those before it are stale
        self._num_rows = 0
        self._number_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._place_of: dict[int, array[int]] = {}  # by the model's number, then by row; -1: it is not idle
        self._num_models = 0  # that ever were here: a number is given once

    def __len__(self) -> int:
        return self._num_rows

    def add_model(self, model: str, max_rows: int) -> None:
        number = self._num_models
        self._num_models += 1
        self._number_of[model], self._name_of[number] = number, model
        self._place_of[number] = array("q", [-1]) * max_rows

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
        self._place_of[number][row] = len(self._order)
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
