"""Random checkpoints for the benchmarks, written once into a cache folder."""

from pathlib import Path

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

DEFAULT_CACHE = Path.home() / ".cache" / "muxfleet" / "benchmarks"


def llama_shape(num_layers: int) -> CheckpointShape:
    """6.3 M parameters a layer: 16 layers are about 100 M."""
    return CheckpointShape(
        model_type="llama",
        num_layers=num_layers,
        hidden_size=768,
        intermediate_size=2048,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=640,
        max_position_embeddings=8192,
    )


def llama_checkpoint(cache: Path, *, num_layers: int, seed: int = 0) -> Path:
    folder = cache / f"llama-{num_layers}-layers-{seed}"
    complete = folder / "complete"
    if not complete.exists():
        write_random_checkpoint(folder, llama_shape(num_layers), seed)
        complete.touch()
    return folder
