import io

import pytest
from rich.console import Console
from rich.table import Table

from deploy.commands.fitted_table import FittedTable
from deploy.commands.fleet_tables import short_names
from deploy.commands.table_cells import bar


def drawn(table: FittedTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def table_of(columns: int, *, name: str = "a-model", cell: str = "12345 ms") -> FittedTable:
    table = FittedTable(keys=2)
    table.add_column("unit")
    table.add_column("model")
    for i in range(columns):
        table.add_column(f"title {i}", justify="right")
    table.add_row("pool/0", name, *(cell for _ in range(columns)))
    table.add_row("", "b-model", *(cell for _ in range(columns)))
    return table


def test_table__wide_enough__is_one() -> None:
    lines = drawn(table_of(12), 160)

    assert len(lines) == 3
    assert lines[0].count("title") == 12


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_table__narrow__nothing_is_cut_and_no_line_too_long(width: int) -> None:
    lines = drawn(table_of(12), width)
    text = "\n".join(lines)

    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert all(text.count(f"title {i}") >= 1 for i in range(12))
    assert text.count("12345 ms") == 24
    assert text.count("a-model") == text.count("b-model") > 1


def test_table__very_long_names__are_shortened_in_the_middle_only() -> None:
    lines = drawn(table_of(12, name="organisation/" + "very-" * 20 + "long-Instruct"), 80)

    assert max(map(len, lines)) <= 80
    assert "organisation/" in lines[1]
    assert "long-Instruct" in lines[1]
    assert "\n".join(lines).count("12345 ms") == 24


def test_table__cells_like_markup__are_shown_as_they_are() -> None:
    table = table_of(1, name="[red]:star:", cell="runs[1].jsonl")

    assert "[red]:star:  runs[1].jsonl" in drawn(table, 80)[1]


@pytest.mark.parametrize("width", [60, 160])
def test_table__any_width__is_laid_out_as_richs_tables(width: int) -> None:
    table, like = FittedTable(keys=1), Table(box=None, pad_edge=False)
    for title, justify in (("unit", "left"), ("模型", "left"), ("load", "right")):
        table.add_column(title, justify=justify)
        like.add_column(title, justify=justify)
    for cells in (("pool/0", "a", "12 %"), ("", "模型二", "3 %")):
        table.add_row(*cells, style="dim")
        like.add_row(*cells)

    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(like)
    assert drawn(table, width) == console.file.getvalue().splitlines()


def test_table__part_that_says_nothing_of_a_row__leaves_it_out() -> None:
    table = table_of(4)
    table.add_column("last", justify="right")
    table._columns[-1].cells.extend(["x" * 30, ""])

    lines = drawn(table, 60)

    assert [line for line in lines if "b-model" in line] == [line for line in lines if "b-model  12345" in line]


@pytest.mark.parametrize(
    ("unit_ids", "expected"),
    [
        ([], {}),
        (["local-3f9a1c2b7d4e"], {"local-3f9a1c2b7d4e": "local-3f9a"}),
        (["p-aaaa1", "p-aaaa2"], {"p-aaaa1": "p-aaaa1", "p-aaaa2": "p-aaaa2"}),
        (["large/0", "large/1"], {"large/0": "large/0", "large/1": "large/1"}),
    ],
)
def test_short_names__any_units__are_told_apart(unit_ids: list[str], expected: dict[str, str]) -> None:
    assert short_names(unit_ids) == expected


@pytest.mark.parametrize(("share", "expected"), [(0, "░░░░░░"), (0.5, "███░░░"), (1.7, "██████")])
def test_bar__share__is_drawn(share: float, expected: str) -> None:
    assert bar(share) == expected
