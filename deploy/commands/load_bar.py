"""Shows how far a model's weights are on their way."""

from pdmux_actor.lease import LoadProgress

_BAR_CELLS = 6


def bar(share: float) -> str:
    """Draws a share as a bar of a few cells; beyond 1 it is full."""
    full = min(_BAR_CELLS, max(0, round(share * _BAR_CELLS)))
    return "█" * full + "░" * (_BAR_CELLS - full)


def load_bar(progress: LoadProgress) -> str:
    """Draws it as `reading ███░░░ 52% of 14.2 GB`."""
    return f"{progress.stage} {bar(progress.share)} {progress.share:.0%} of {progress.total_bytes / 1e9:.1f} GB"
