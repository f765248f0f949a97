"""Says where tensors lie, as kernels take it."""

from torch import Tensor


def pointer_of(tensor: Tensor | None) -> int | None:
    """Returns null where there is no tensor."""
    return None if tensor is None else tensor.data_ptr()
