"""The checkpoints that all systems serve: one made here, trained weights from the package index, a larger shape."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from engines.llama_checkpoint import llama_checkpoint
from engines.qwen_checkpoint import qwen_checkpoint

from deploy.local.demo_weights import demo_weights

NUM_LAYERS = 16


def _trained(_: Path) -> Path:
    """SmolLM2-135M-Instruct. Raises DemoWeightsUnavailable."""
    return demo_weights(lambda _fetched: None).llama


CHECKPOINTS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "random-100m": lambda cache: llama_checkpoint(cache, num_layers=NUM_LAYERS),
        "smollm2-135m": _trained,
        "qwen2.5-0.5b-shape": qwen_checkpoint,
    }
)
"""By name: writes or fetches it into a cache folder, once."""
