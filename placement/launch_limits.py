"""Defines how much one launch of an engine holds at most: so much memory is reserved beside weights and KV pool."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimits:
    """`batch_tokens`: new tokens of the largest prefill batch. `sequences`: those that sample in one step."""

    batch_tokens: int = 2048
    sequences: int = 64


DEFAULT_LIMITS = LaunchLimits()
