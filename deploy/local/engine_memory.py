"""Measures the memory of the engine processes that this process is an ancestor of: how far a load has come."""

import psutil

_MARKS = ("pdmux_actor.serving.process", "pdmux_actor.backends.sglang.process", "sglang::")


def engine_memory_bytes() -> int:
    """Host memory only: weights on their way to a GPU pass through it."""
    held_bytes = 0
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            if any(mark in command for mark in _MARKS):
                held_bytes += process.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return held_bytes
