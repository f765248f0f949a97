"""Triton's kernels run in its interpreter here, on CPU tensors: what they compute is tested, not how fast."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from interpreted_checkpoints import write_interpreted_checkpoint

# Read by triton.jit when a kernel's module is imported, which happens after this file.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _patched_language() -> Iterator[None]:
    try:
        from patched_language import patched_language
    except ImportError:  # Triton has no build for this platform
        yield
    else:
        with patched_language():
            yield


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("tiny-checkpoints")
    return {
        model_type: write_interpreted_checkpoint(root / model_type, model_type, heads=heads, seed=seed)
        for seed, (model_type, heads) in enumerate((("llama", 4), ("qwen2", 2), ("qwen3", 6)))
    }
