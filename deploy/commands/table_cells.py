"""Figures as tables of a fleet show them."""

from deploy.commands.fitted_table import FittedTable
from deploy.commands.load_bar import bar

NONE = "-"


def milliseconds(time_s: float | None) -> str:
    return NONE if time_s is None else f"{time_s * 1000:.0f} ms"


def share_cell(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def blocks_cell(used: int, quota: int) -> str:
    return f"{bar(used / max(1, quota))} {used}/{quota}"


def lost_cell(ttft_lost_s: float | None, tbt_lost_s: float | None) -> str:
    """Tells what other models cost a first token, and a gap, on average."""
    if ttft_lost_s is None and tbt_lost_s is None:
        return NONE
    return f"{milliseconds(ttft_lost_s)} / {milliseconds(tbt_lost_s)}"


def fitted(*titles: str, keys: int = 1) -> FittedTable:
    table = FittedTable(keys=keys)
    for title in titles:
        table.add_column(title)
    return table
