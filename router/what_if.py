"""Defines what a planner is asked beside what is: other demand, targets or nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTargets:
    """None: as it is."""

    ttft_s: float | None = None
    tbt_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChanges:
    """Holds by model `rates` of requests per second and `targets` in place of its own, and `nodes` by pool."""

    rates: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, OtherTargets] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Puts it in words: `llama at 12.5/s, qwen with TTFT 0.5 s, pool fast with 6 nodes`."""
        told = [f"{model} at {rate:g}/s" for model, rate in sorted(self.rates.items())]
        for model, targets in sorted(self.targets.items()):
            named = (("TTFT", targets.ttft_s), ("TBT", targets.tbt_s))
            told += [f"{model} with {name} {target_s:g} s" for name, target_s in named if target_s is not None]
        told += [f"pool {pool} with {n} node{'s' * (n != 1)}" for pool, n in sorted(self.nodes.items())]
        return ", ".join(told)
