"""Keeps Triton's language as its interpreter patches it, and makes its values and types quickly. At each launch the
interpreter patches hundreds of names and puts them back, and for each operation of a kernel it makes the types of all
values anew: both take longer than what kernels of these tests compute.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
from recorded_operations import RECORDED, RecordedOperation, is_recorded
from triton import language
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


class _Kept:
    def restore(self) -> None:
        """The next launch finds it patched."""


@contextmanager
def patched_language() -> Iterator[None]:
    patch_names, scopes = interpreter._patch_lang, dict[tuple[bool, bool], Any]()
    kept = _Kept()

    @cache
    def patch_once(function: Callable[..., object]) -> _Kept:
        names = function.__globals__.values()
        sees = any(value is language for value in names), any(value is language.core for value in names)
        if sees not in scopes:
            scopes[sees] = patch_names(function)
        return kept

    with ExitStack() as patched:
        for owner, name, value in (interpreter, "_patch_lang", patch_once), *_looked_up():
            patched.enter_context(patch.object(owner, name, value))
        try:
            yield
        finally:
            for scope in reversed(scopes.values()):
                scope.restore()


_TensorShape = tuple[core.tuple, core.constexpr]


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
    def block_of(*shape: int) -> tuple[core.tuple, int, _TensorShape]:
        tensor_shape = core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))
        return core.tuple(shape), validate_block_shape(shape), tensor_shape

    def init_block_type(self: core.block_type, element_ty: core.dtype, shape: Iterable[object]) -> None:
        self.element_ty = element_ty
        sizes = shape.value if isinstance(shape, core.constexpr) else shape
        sizes = (size if type(size) is int else core._unwrap_if_constexpr(size) for size in sizes)
        self.shape, self.numel, self.tensor_shape = block_of(*sizes)
        if not self.shape.values:
            raise TypeError("0d block_type is forbidden")
        self.name = f"<{self.shape.values}, {element_ty}>"

    @cache
    def block_type(element_ty: core.dtype, *shape: int) -> core.block_type:
        return core.block_type(element_ty, shape)

    def with_element_ty(self: core.block_type, scalar_ty: core.dtype) -> core.block_type:
        if scalar_ty.is_ptr():  # has no hash
            return core.block_type(scalar_ty, self.shape)
        return block_type(scalar_ty, *self.shape.values)

    scalar_shape = core.tuple([]), core.constexpr(1)

    def init_tensor(self: core.tensor, handle: object, type: core.dtype) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.tensor_shape if type.is_block() else scalar_shape

    yield interpreter, "_get_np_dtype", np_dtype
    yield core.block_type, "__init__", init_block_type
    yield core.block_type, "with_element_ty", with_element_ty
    yield core.tensor, "__init__", init_tensor
    yield from _short_ways()


def _short_ways() -> Iterator[tuple[object, str, object]]:
    """Calls that change nothing return at once; what remains of the others is theirs."""
    unwrap, broadcast = core._unwrap_if_constexpr, TritonSemantic.broadcast_impl_value
    same_name, cast_value = core.dtype.__eq__, TritonSemantic.cast
    promoted = cache(partial(TritonSemantic.computation_type_impl, interpreter.interpreter_semantic))

    def unwrap_if_constexpr(value: object) -> object:
        if isinstance(value, core.constexpr):
            return value.value
        return unwrap(value) if isinstance(value, (list, tuple, core.tuple)) else value

    def is_same(self: core.dtype, other: object) -> bool:
        return self is other or same_name(self, other)

    def computation_type(self: TritonSemantic, *types: object) -> core.dtype:
        return promoted(*types)

    def cast(self: TritonSemantic, input: core.tensor, dst_ty: core.dtype, *rounding: object) -> core.tensor:
        return input if input.dtype is dst_ty.scalar else cast_value(self, input, dst_ty, *rounding)

    @cache
    def joined(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
        """None where the original has more to do, or to refuse."""
        fit = len(left) == len(right) and all(1 in (a, b) or a == b for a, b in zip(left, right, strict=True))
        return tuple(map(max, left, right)) if fit else None

    def broadcast_value(self: TritonSemantic, lhs: core.tensor, rhs: core.tensor) -> tuple[core.tensor, core.tensor]:
        left, right = lhs.type, rhs.type
        if not (left.is_block() and right.is_block()):
            return broadcast(self, lhs, rhs)
        if left.shape is right.shape:
            return lhs, rhs
        sizes = tuple(left.shape.values), tuple(right.shape.values)
        shape = joined(*sizes)
        if shape is None:
            return broadcast(self, lhs, rhs)
        return tuple(
            value if own == shape else widened(self, value, shape) for value, own in zip((lhs, rhs), sizes, strict=True)
        )

    def widened(self: TritonSemantic, value: core.tensor, shape: tuple[int, ...]) -> core.tensor:
        handle = self.builder.create_broadcast(value.handle, shape)
        return self.tensor(handle, core.block_type(value.dtype, shape))

    def patch_builtin(owner: object, name: str, member: Any, builder: object, scope: Any) -> None:
        function = getattr(member, "__wrapped__", member)  # around it, triton only looks whether `_semantic` is there
        semantic = interpreter.interpreter_semantic
        again = RecordedOperation(function, semantic) if name in RECORDED else partial(function, _semantic=semantic)

        def interpreted(*args: object, _semantic: object = None, **named: object) -> object:
            return function(*args, **named, _semantic=_semantic) if is_recorded(_semantic) else again(*args, **named)

        scope.set_attr(owner, name, interpreted)

    yield core, "_unwrap_if_constexpr", unwrap_if_constexpr
    yield core.dtype, "__eq__", is_same
    yield core.block_type, "to_ir", lambda self, _builder: self  # of its scalars the interpreter says the same
    yield TritonSemantic, "cast", cast
    yield TritonSemantic, "computation_type_impl", computation_type
    yield TritonSemantic, "broadcast_impl_value", broadcast_value
    yield interpreter, "_patch_attr", patch_builtin
