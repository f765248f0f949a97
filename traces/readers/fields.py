"""Defines what a value in a trace file must be to become part of a request."""

import math
from dataclasses import dataclass
from pathlib import Path

from traces.errors import BadTraceFile

MAX_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Cell:
    """A value and where it stands."""

    path: Path
    row: int
    field: str
    value: object

    def bad(self, remedy: str) -> BadTraceFile:
        return BadTraceFile(path=self.path, field=self.field, row=self.row, value=self.value, remedy=remedy)

    def tokens(self, *, minimum: int) -> int:
        """Raises BadTraceFile unless the value is a whole number from `minimum` to what any model may ever read."""
        remedy = f"give a whole number of tokens from {minimum} to {MAX_TOKENS}, or remove the row"
        value = self.value
        if isinstance(value, str):
            try:
                number = int(value)
            except ValueError as error:
                raise self.bad(remedy) from error
        elif type(value) is int or (isinstance(value, float) and value.is_integer()):  # no bool, NaN or infinity
            number = int(value)
        else:
            raise self.bad(remedy)
        if not minimum <= number <= MAX_TOKENS:
            raise self.bad(remedy)
        return number

    def seconds(self) -> float:
        """Raises BadTraceFile unless the value is a finite number."""
        remedy = "give the arrival time as a finite number, or remove the row"
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.bad(remedy)
        try:
            value = float(self.value)
        except OverflowError as error:
            raise self.bad(remedy) from error
        if not math.isfinite(value):
            raise self.bad(remedy)
        return value

    def optional_text(self) -> str | None:
        """Raises BadTraceFile unless the value is absent or a string that is not empty."""
        if self.value is None:
            return None
        if not isinstance(self.value, str) or not self.value:
            raise self.bad("give a non-empty string or null")
        return self.value

    def block_hashes(self) -> tuple[int, ...]:
        """Raises BadTraceFile unless the value is absent or a list of integers."""
        if self.value is None:
            return ()
        if not isinstance(self.value, list) or not all(type(item) is int for item in self.value):
            raise self.bad("give a list of integer block ids, or leave the field out")
        return tuple(self.value)
