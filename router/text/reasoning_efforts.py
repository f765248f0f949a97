"""Says to a chat template how much reasoning is asked for, in the words that it knows."""

from collections.abc import Mapping, Sequence
from typing import Any

EFFORT_SCALE: Mapping[str, int] = {
    "none": 0,
    "no_think": 0,  # Hunyuan's
    "minimal": 1,
    "low": 2,
    "medium": 3,
    "high": 4,
    "xhigh": 5,
    "max": 6,
}
EFFORT_NAMES = ("reasoning_effort", "thinking_effort")  # the latter is Kimi K3's


def effort_arguments(variables: Sequence[str], known: Sequence[str], effort: str) -> dict[str, Any]:
    """Returns the arguments of a template that reads `variables`: an effort, the nearest that it knows, of two the
    higher; or a switch. `known`: those that it names, or none.
    """
    thinks = effort != "none"
    said: dict[str, Any] = {name: thinks for name in ("enable_thinking", "thinking") if name in variables}
    name_read = next((name for name in EFFORT_NAMES if name in variables), None)
    if name_read is None:
        return said
    nearest = min(
        known, key=lambda name: (abs(EFFORT_SCALE[name] - EFFORT_SCALE[effort]), -EFFORT_SCALE[name]), default=effort
    )
    if not thinks and said and EFFORT_SCALE[nearest] > 0:
        return said  # the switch says it
    return {name_read: nearest, **said}
