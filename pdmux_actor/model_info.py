"""Defines what an executor reads a model from, and what the scheduler then knows of it."""

from dataclasses import dataclass, replace

from pdmux_actor.kv.geometry import KvGeometry
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """`source` is a folder or a repository on the hub. `weights` is the form that they are quantised into. None: the
    executor's own `dtype`, `weights` as they are stored, the checkpoint's `max_model_len`.
    """

    model: str
    source: str
    revision: str | None = None
    dtype: str | None = None
    weights: str | None = None
    max_model_len: int | None = None

    def or_dtype(self, dtype: str | None) -> "ModelSource":
        """Returns it with this dtype where it names none."""
        return self if self.dtype else replace(self, dtype=dtype)


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
