"""Responses as the OpenAPI document shows them. Replies are encoded without these models; tests hold both together."""

from typing import Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class UsageSchema(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprobSchema(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobSchema(TopLogprobSchema):
    top_logprobs: list[TopLogprobSchema]


class PromptLogprobSchema(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


class ChatLogprobs(BaseModel):
    content: list[TokenLogprobSchema]
    refusal: None


class FunctionCallSchema(BaseModel):
    name: str
    arguments: str


class ToolCallSchema(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCallSchema


class AssistantMessage(BaseModel):
    """`reasoning` and `reasoning_content` say the same: clients look for one or the other."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallSchema] | None = None
    function_call: FunctionCallSchema | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageSchema
    service_tier: Literal["flex", "default", "priority"] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprobSchema] | None] | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprobSchema] | None] | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageSchema
    service_tier: Literal["flex", "default", "priority"] | None = None


class Embedding(BaseModel):
    """`embedding` holds numbers, or with `encoding_format` "base64" their float32, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class RankedText(BaseModel):
    text: str


class RankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: RankedText | None = None


class RerankReply(BaseModel):
    """Documents of the highest scores come first; `index` is that of the request."""

    id: str
    model: str
    usage: EmbeddingsUsage
    results: list[RankedDocument]


class PairScore(BaseModel):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(BaseModel):
    """`index` is that of the pair."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: EmbeddingsUsage


class SloTargets(BaseModel):
    ttft_s: float
    tbt_s: float


class Model(BaseModel):
    """`status` is ready, loading, failed or unavailable; `max_model_len` is null until a unit was ready. Of a LoRA
    adapter `root` and `parent` name its base; of another model `root` is its own id.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["muxfleet"] = "muxfleet"
    root: str
    parent: str | None
    max_model_len: int | None
    status: Literal["ready", "loading", "failed", "unavailable"]
    slo: SloTargets


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready"] = "ready"
    models: list[str]


class Version(BaseModel):
    version: str
