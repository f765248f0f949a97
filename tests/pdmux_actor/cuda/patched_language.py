"""Keeps Triton's language as its interpreter patches it. At each launch that patches hundreds of names and puts them
back, which takes longer than most kernels of these tests.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from triton import language
from triton.runtime import interpreter


class _Kept:
    def restore(self) -> None:
        """The next launch finds it patched."""


@contextmanager
def patched_language() -> Iterator[None]:
    patch, scopes = interpreter._patch_lang, dict[tuple[bool, bool], Any]()

    def patch_once(function: Callable[..., object]) -> _Kept:
        names = function.__globals__.values()
        sees = any(value is language for value in names), any(value is language.core for value in names)
        if sees not in scopes:
            scopes[sees] = patch(function)
        return _Kept()

    interpreter._patch_lang = patch_once
    try:
        yield
    finally:
        interpreter._patch_lang = patch
        for scope in reversed(scopes.values()):
            scope.restore()
