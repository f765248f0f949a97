"""Shows how far a model is on its way."""

from pdmux_actor.lease import LoadProgress, LoadStage

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
