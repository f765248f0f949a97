"""Reads how many tokens layers see, of models in which some have a sliding window."""

from collections.abc import Mapping, Sequence
from typing import Any

from profiler.config_fields import count
from profiler.errors import UnsupportedModel

_QWEN_WINDOW = 4096  # what transformers assumes where a config.json says nothing about it


def layer_windows(config: Mapping[str, Any], *, window: int, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """Returns them as DecoderTraits has them. `window`, and the `kinds` of layers, in turn, are those of a config.json
    that names none.

    >>> layer_windows({"num_hidden_layers": 3}, window=8, kinds=("sliding_attention", "full_attention"))
    (8, None, 8)

    Raises:
        UnsupportedModel: `layer_types` are not those of all layers.
    """
    num_layers = count(config, "num_hidden_layers")
    tokens = config.get("sliding_window", window)
    of_layers = config.get("layer_types") or [kinds[layer % len(kinds)] for layer in range(num_layers)]
    if len(of_layers) != num_layers:
        remedy = f"name the kind of each of num_hidden_layers={num_layers} layers"
        raise UnsupportedModel(field="layer_types", value=str(of_layers), remedy=remedy)
    slides = (tokens is not None and kind == "sliding_attention" for kind in of_layers)
    return tuple(int(tokens) if is_sliding else None for is_sliding in slides)


def window_tokens(config: Mapping[str, Any], *, by_layer: bool = True) -> int | None:
    """Returns that of Qwen 2 and 3, which all layers have if it is switched on, or with `by_layer` some. None: no layer
    has one.
    """
    window = config.get("sliding_window", _QWEN_WINDOW)
    if window is None or not config.get("use_sliding_window", False):
        return None
    slides, layer_types = True, config.get("layer_types")
    if by_layer and layer_types is not None:
        slides = "sliding_attention" in layer_types
    elif by_layer:
        slides = int(config.get("max_window_layers", 0)) < count(config, "num_hidden_layers")
    return int(window) if slides else None
