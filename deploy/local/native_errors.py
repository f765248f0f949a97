"""Keeps what libraries' native code writes off the terminal; what Python writes stays on it."""

import os
import sys


def silence_native_errors() -> None:
    """Ray's core writes lines to standard error, by its file descriptor, when its cluster ends: they tell nothing that
    is not said already.
    """
    if sys.stderr is None:  # as where the shell has closed it
        return
    sys.stderr.flush()
    try:
        kept = os.dup(2)
        nothing = os.open(os.devnull, os.O_WRONLY)
    except OSError:
        return
    encoding = sys.stderr.encoding
    sys.stderr = open(kept, "w", buffering=1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115 - until the end
    os.dup2(nothing, 2)
    os.close(nothing)
