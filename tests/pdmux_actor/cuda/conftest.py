"""Triton's kernels run in its interpreter here, on CPU tensors: what they compute is tested, not how fast."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

# Read by triton.jit when a kernel's module is imported, which happens after this file.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Small enough for the interpreter, which takes a millisecond for each program of a kernel."""
    root = tmp_path_factory.mktemp("tiny-checkpoints")
    folders = {}
    for seed, (model_type, heads) in enumerate((("llama", 4), ("qwen2", 2), ("qwen3", 6))):
        folders[model_type] = root / model_type
        shape = CheckpointShape(
            model_type=model_type,
            num_layers=2,
            hidden_size=48,
            intermediate_size=96,
            num_heads=heads,
            num_kv_heads=2,
            head_dim=16,
        )
        write_random_checkpoint(folders[model_type], shape, seed)
    return folders
