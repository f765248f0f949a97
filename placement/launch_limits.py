"""Works out how much one launch of a unit's engine holds at most: what memory beside weights and KV pool is reserved
for.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimits:
    """`batch_tokens`: new tokens of the largest prefill batch. `sequences`: those that sample in one step."""

    batch_tokens: int = 2048
    sequences: int = 64


DEFAULT_LIMITS = LaunchLimits()
