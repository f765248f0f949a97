"""Keeps Triton's language as its interpreter patches it, and makes its values and types quickly. At each launch the
interpreter patches hundreds of names and puts them back, and for each operation of a kernel it makes the types of all
values anew: both take longer than what kernels of these tests compute.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from triton import language
from triton._utils import validate_block_shape
from triton.language import core
from triton.runtime import interpreter


class _Kept:
    def restore(self) -> None:
        """The next launch finds it patched."""


@contextmanager
def patched_language() -> Iterator[None]:
    patch_names, scopes = interpreter._patch_lang, dict[tuple[bool, bool], Any]()

    def patch_once(function: Callable[..., object]) -> _Kept:
        names = function.__globals__.values()
        sees = any(value is language for value in names), any(value is language.core for value in names)
        if sees not in scopes:
            scopes[sees] = patch_names(function)
        return _Kept()

    with ExitStack() as patched:
        for owner, name, value in (interpreter, "_patch_lang", patch_once), *_looked_up():
            patched.enter_context(patch.object(owner, name, value))
        try:
            yield
        finally:
            for scope in reversed(scopes.values()):
                scope.restore()


def _looked_up() -> Iterator[tuple[object, str, object]]:
    """What a shape or a type determines is looked up. No check is lost: the interpreter computes which integers
    overflow for assertions that it makes under `debug` only.
    """
    builder, type_on_host = interpreter.interpreter_builder, interpreter._get_np_dtype
    yield builder, "options", replace(builder.options, sanitize_overflow=builder.options.debug)
    scalar_on_host = cache(type_on_host)

    def np_dtype(of: core.dtype) -> np.dtype:
        return type_on_host(of) if of.scalar.is_ptr() else scalar_on_host(of.scalar)

    @cache
    def block_of(*shape: int) -> tuple[core.tuple, int]:
        return core.tuple(shape), validate_block_shape(shape)

    @cache
    def tensor_of(*shape: int) -> tuple[core.tuple, core.constexpr]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def init_block_type(self: core.block_type, element_ty: core.dtype, shape: Iterable[object]) -> None:
        self.element_ty = element_ty
        self.shape, self.numel = block_of(*map(core._unwrap_if_constexpr, core._unwrap_if_constexpr(shape)))
        if not self.shape.values:
            raise TypeError("0d block_type is forbidden")
        self.name = f"<{self.shape.values}, {element_ty}>"

    def init_tensor(self: core.tensor, handle: object, type: core.dtype) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensor_of(*(type.shape.values if type.is_block() else ()))

    yield interpreter, "_get_np_dtype", np_dtype
    yield core.block_type, "__init__", init_block_type
    yield core.tensor, "__init__", init_tensor
