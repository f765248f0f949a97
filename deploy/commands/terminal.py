"""The terminal that commands write to."""

from functools import partial

from rich.console import Console

_PIPED_COLUMNS = 160


def terminal() -> Console:
    """Returns a console that prints no markup: names and paths may look like it. A pipe has no width; rich's 80 columns
    would cut tables.
    """
    plain = partial(Console, highlight=False, markup=False, emoji=False)
    console = plain()
    return console if console.is_terminal else plain(width=_PIPED_COLUMNS)
