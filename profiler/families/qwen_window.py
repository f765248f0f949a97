"""The attention window of Qwen 2 and 3, which some of the layers have if it is switched on."""

from collections.abc import Mapping
from typing import Any

from profiler.config_fields import count


def window_tokens(config: Mapping[str, Any]) -> int | None:
    """None: no layer has one."""
    window, layer_types = config.get("sliding_window"), config.get("layer_types")
    if window is None or not config.get("use_sliding_window", False):
        return None
    if layer_types is not None:
        slides = "sliding_attention" in layer_types
    else:
        slides = int(config.get("max_window_layers", 0)) < count(config, "num_hidden_layers")
    return int(window) if slides else None
