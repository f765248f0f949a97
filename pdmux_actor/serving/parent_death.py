"""Ends a process of ours with the one that started it. Beside `own_program`: who is started needs no asyncio."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends: no orphan, whatever the process is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
