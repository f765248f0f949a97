"""Tells which variants of its kernels Triton would compile for a GPU, by the launches that its interpreter is given."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

Variant = tuple[str, str]
"""A kernel's name, and what of its arguments it is compiled for."""


@contextmanager
def recorded_variants() -> Iterator[set[Variant]]:
    """Those that launches need while this is open."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    binders: dict[str, Any] = {}
    found: set[Variant] = set()
    run = InterpretedFunction.run

    def noted(self: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        name = self.fn.__name__
        if name not in binders:
            kernel = JITFunction(self.fn, **self.kwargs)
            binders[name] = create_function_from_signature(inspect.signature(self.fn), kernel.params, backend)
        _, specialization, options = binders[name](*args, **kwargs)
        found.add((name, f"{specialization} {sorted(options.items())}"))
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InterpretedFunction, "run", noted)
        yield found
