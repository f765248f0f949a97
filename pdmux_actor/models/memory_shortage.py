"""Tells errors for want of device memory from others, and lets go of what such an error holds."""

import traceback

_SHORT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")  # torch, CUDA and Triton; cuBLAS


def lacked_memory(error: Exception) -> bool:
    """Returns whether what failed may succeed once there is more memory."""
    return any(words in str(error) for words in _SHORT_OF_MEMORY)


def let_go(error: BaseException) -> None:
    """Clears the variables of all calls that have ended with it: they would hold what was made on the device for as
    long as anybody has the error.
    """
    raised: BaseException | None = error
    while raised is not None:
        traceback.clear_frames(raised.__traceback__)
        raised = raised.__cause__ or raised.__context__
