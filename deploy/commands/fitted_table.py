"""A table that is never cut: what does not fit beside its first columns goes below, under the same first columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

_GAP = 2  # columns between two cells
_LEAST_KEY = 8
_LEAST_REST = 24


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    justify: Literal["left", "right"]
    cells: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.title, *self.cells)))


class FittedTable:
    """Lays out a fitted model's table for rich's console. Its first `keys` columns say what a row is about, and stand
    left of every part.
    """

    def __init__(self, *, keys: int = 1, title: str | None = None) -> None:
        self._keys = keys
        self._title = title
        self._columns: list[_Column] = []
        self._styles: list[str | None] = []

    def add_column(self, title: str, *, justify: Literal["left", "right"] = "left") -> None:
        self._columns.append(_Column(title, justify))

    def add_row(self, *cells: str, style: str | None = None) -> None:
        for column, cell in zip(self._columns, cells, strict=True):
            column.cells.append(cell)
        self._styles.append(style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        keys, others = self._columns[: self._keys], self._columns[self._keys :]
        widths = _key_widths([c.width for c in keys], options.max_width)
        room = options.max_width - sum(widths) - _GAP * len(widths)
        if self._title is not None:
            yield Text(self._title, style="bold")
        for i, part in enumerate(_parts(others, room)):
            if i > 0:
                yield Text("")
            yield from self._lines(console, keys, widths, part, room)

    def _lines(
        self, console: Console, keys: Sequence[_Column], widths: Sequence[int], others: Sequence[_Column], room: int
    ) -> Iterator[Segment]:
        """Cells are no markup, and as wide as was measured: rich's own tables take 2 ms a row to find that out."""
        shown = [*zip(keys, widths, strict=True), *((column, min(column.width, room)) for column in others)]
        yield _line([_padded(column.title, width, column.justify) for column, width in shown], Style(bold=True))
        for row, style in enumerate(self._styles):
            if others and not any(column.cells[row] for column in others):
                continue  # what this part says stands in a row above
            cells = [_padded(column.cells[row], width, column.justify) for column, width in shown]
            yield _line(cells, None if style is None else console.get_style(style))


def _line(cells: Sequence[str], style: Style | None) -> Segment:
    return Segment((" " * _GAP).join(cells) + "\n", style)


def _padded(text: str, width: int, justify: Literal["left", "right"]) -> str:
    text = _shortened(text, width)
    padding = " " * (width - cell_len(text))
    return text + padding if justify == "left" else padding + text


def _parts(columns: Sequence[_Column], room: int) -> Iterator[Sequence[_Column]]:
    part: list[_Column] = []
    used = 0
    for column in columns:
        needed = column.width + (_GAP if part else 0)
        if part and used + needed > room:
            yield part
            part, used, needed = [], 0, column.width
        part.append(column)
        used += needed
    yield part


def _key_widths(wanted: Sequence[int], width: int) -> Sequence[int]:
    """The widest give way until there is room for something beside them."""
    widths = list(wanted)
    while sum(widths) + _GAP * len(widths) + _LEAST_REST > width and max(widths, default=0) > _LEAST_KEY:
        widths[widths.index(max(widths))] -= 1
    return widths


def _shortened(text: str, width: int) -> str:
    """Names differ at their ends: the middle goes."""
    if cell_len(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"
