"""Where tensors lie, as kernels take it."""

from torch import Tensor


def pointer_of(tensor: Tensor | None) -> int | None:
    """None, which a kernel sees as null, where there is none."""
    return None if tensor is None else tensor.data_ptr()
