"""Defines what the scheduler knows of a model that an executor holds."""

from dataclasses import dataclass

from pdmux_actor.kv.geometry import KvGeometry
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """`whole` is the shape of the whole model, where `spec` is what one rank has of it."""

    model: str
    spec: ModelSpec
    geometry: KvGeometry
    eos_token_ids: frozenset[int]
    max_model_len: int
    own_kv_beyond_tokens: int | None = None  # longer prompts share no KV with others (RopeConfig)
    whole: ModelSpec | None = None


def longest_sequence_tokens(info: ModelInfo, quota_blocks: int) -> int:
    """Tokens of the longest sequence that the model's context and its token-block quota both admit."""
    quota_rows = quota_blocks // info.geometry.blocks_per_row
    return min(info.max_model_len, quota_rows * info.geometry.tokens_per_row)
