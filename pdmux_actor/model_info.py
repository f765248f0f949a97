"""Defines what the scheduler knows of a model that an executor holds."""

from dataclasses import dataclass

from pdmux_actor.kv.geometry import KvGeometry
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    model: str
    spec: ModelSpec
    geometry: KvGeometry
    eos_token_ids: frozenset[int]
    max_model_len: int
    own_kv_beyond_tokens: int | None = None  # longer prompts share no KV with others (RopeConfig)
