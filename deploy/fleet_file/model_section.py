"""The section of a fleet file that says what one model is, who asks for it, and how it shall be served."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, ValidationInfo
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from deploy.fleet_file.section import Section
from deploy.fleet_file.setting_types import Dtype, ModelId, Weights


def _without_default(schema: JsonDict) -> None:
    del schema["default"]


def _source_or_adapter(value: object, info: ValidationInfo) -> object:
    """Takes an adapter for its source."""
    source = info.data.get("adapter") if value is None else value
    if source is None:
        raise PydanticCustomError("missing", "Field required")
    return source


class SloSection(Section):
    ttft_s: PositiveFloat = 2.0
    """Target for the time to the first token."""
    tbt_s: PositiveFloat = 0.2
    """Target for each gap between two tokens."""


class DemandSection(Section):
    """Holds what is expected of a model before it has seen traffic."""

    rate_per_s: Annotated[float, Field(ge=0)] = 1.0
    prompt_tokens: PositiveInt = 512
    """Mean length of a prompt."""
    output_tokens: PositiveInt = 128
    """Mean length of an answer."""
    arrival_cv: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Coefficient of variation of the gaps between requests (`muxfleet traces stats`); 1: Poisson, more: bursts."""


class ReplicasSection(Section):
    min: Annotated[int, Field(ge=0, le=10_000)] = 1
    """0: the model is loaded when somebody asks for it and gives up its place when nobody does."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 1
    idle_after_s: PositiveFloat = 300.0
    """With min 0: how long nobody must have asked before the model gives up its place."""


class ModelSection(Section):
    id: ModelId
    """The name clients use."""
    base: ModelId | None = None
    """Of a LoRA adapter: the model of this file that it was trained on. Both are served by the same units."""
    adapter: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """With `base`, instead of `source`: a LoRA adapter as PEFT saves it, a folder (relative to this file) or a Hugging
    Face id."""
    source: Annotated[str, Field(min_length=1, max_length=4096), BeforeValidator(_source_or_adapter)] = Field(
        default=None, validate_default=True, json_schema_extra=_without_default
    )
    """A folder in Hugging Face layout or a GGUF file (relative to this file), or a Hugging Face id; of GGUF files there
    org/name:Q4_K_M or org/name/FILE.gguf."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    dtype: Dtype | None = None
    """Default: engine.dtype."""
    weights: Weights | None = None
    """What weights of projections become when a model is loaded: `int8` or `int4` quantises them, `dtype` unpacks those
    of a quantised checkpoint (docs/models.md). Default: as the checkpoint has them."""
    max_model_len: PositiveInt | None = None
    """Tokens of the longest sequence, prompt and answer. Default: `max_position_embeddings` of the checkpoint. Where
    its `config.json` scales rotary positions it may be more: the length before scaling times `factor`. SGLang pools:
    no more than the default."""
    slo: SloSection = SloSection()
    demand: DemandSection = DemandSection()
    replicas: ReplicasSection = ReplicasSection()
