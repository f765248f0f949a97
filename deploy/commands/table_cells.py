"""Figures as tables of a fleet show them."""

from collections.abc import Mapping

from deploy.commands.fitted_table import FittedTable
from pdmux_actor.lease import LoadProgress, LoadStage

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


_BAR_CELLS = 6


def bar(share: float) -> str:
    """Draws a share as a bar of a few cells; beyond 1 it is full."""
    full = min(_BAR_CELLS, max(0, round(share * _BAR_CELLS)))
    return "█" * full + "░" * (_BAR_CELLS - full)


def load_bar(progress: LoadProgress) -> str:
    """Draws it as `reading ███░░░ 52% of 14.2 GB`, or `capturing ███░░░ 151 of 290 graphs`."""
    if progress.stage is LoadStage.CAPTURING:
        amount = f"{progress.done_graphs} of {progress.total_graphs} graphs"
    else:
        amount = f"{progress.share:.0%} of {progress.total_bytes / 1e9:.1f} GB"
    return f"{progress.stage} {bar(progress.share)} {amount}"


_ENOUGH = 100  # of fewer, the 99th percentile lies between the two slowest
_MOST_NAMED = 5


def few_requests_line(finished: Mapping[str, int]) -> str | None:
    """`finished`: requests by model. None: every model that has any has enough."""
    few = [f"{model} ({count})" for model, count in finished.items() if 0 < count < _ENOUGH]
    if not few:
        return None
    more = f" and {len(few) - _MOST_NAMED} more" if len(few) > _MOST_NAMED else ""
    named = ", ".join(few[:_MOST_NAMED])
    return f"fewer than {_ENOUGH} requests ended, so TTFT p99 is nearly the slowest one: {named}{more}"
