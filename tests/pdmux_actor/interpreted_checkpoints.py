"""Checkpoints for Triton's interpreter, which takes a millisecond for each program of a kernel."""

from pathlib import Path

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint


def write_interpreted_checkpoint(folder: Path, model_type: str, *, heads: int, seed: int) -> Path:
    shape = CheckpointShape(
        model_type=model_type,
        num_layers=2,
        hidden_size=48,
        intermediate_size=96,
        num_heads=heads,
        num_kv_heads=2,
        head_dim=16,
    )
    write_random_checkpoint(folder, shape, seed)
    return folder
