"""The terminal that commands write to."""

from rich.console import Console

_PIPED_COLUMNS = 160


def terminal() -> Console:
    """A pipe has no width; rich's 80 columns would cut tables."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_COLUMNS)
