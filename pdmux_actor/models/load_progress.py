"""Defines how readers tell how far they are."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]
"""Is told the bytes that are done, and of how many, as far as that is known."""


def ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Nobody asks how far it is."""
