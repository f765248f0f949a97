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


def wide_llama_checkpoint(cache: Path) -> Path:
    """200 M parameters in 8 layers, whose products are as large as those of a model of a billion."""
    shape = CheckpointShape(
        model_type="llama",
        num_layers=8,
        hidden_size=1536,
        intermediate_size=4096,
        num_heads=24,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=640,
    )
    return _written_once(cache / "llama-wide", shape, seed=0)


def llama_checkpoint(cache: Path, *, num_layers: int, seed: int = 0) -> Path:
    return _written_once(cache / f"llama-{num_layers}-layers-{seed}", llama_shape(num_layers), seed)


def mixture_checkpoint(cache: Path) -> Path:
    """4 of 16 experts for a token, of 1.2 M parameters each, in 4 layers."""
    return _written_once(cache / "qwen3-moe-4-of-16", _beside_mixture("qwen3_moe", 512), seed=0)


def dense_beside_mixture(cache: Path) -> Path:
    """Its MLP is as large as the experts that a token of `mixture_checkpoint` passes."""
    return _written_once(cache / "qwen3-beside-mixture", _beside_mixture("qwen3", 4 * 512), seed=0)


def _beside_mixture(model_type: str, intermediate_size: int) -> CheckpointShape:
    return CheckpointShape(
        model_type=model_type,
        num_layers=4,
        hidden_size=768,
        intermediate_size=intermediate_size,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=640,
        num_experts=16,
        experts_per_token=4,
    )


def _written_once(folder: Path, shape: CheckpointShape, seed: int) -> Path:
    complete = folder / "complete"
    if not complete.exists():
        write_random_checkpoint(folder, shape, seed)
        complete.touch()
    return folder
