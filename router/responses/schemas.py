"""Replies of the Responses API as the OpenAPI document shows them."""

from typing import Any, Literal

from pydantic import BaseModel

from router.responses.input_items import ItemType


class InputTokensDetails(BaseModel):
    """`cache_write_tokens` are 0: to keep a prompt's KV costs nothing. SDKs want them."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponsesUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseError(BaseModel):
    code: str | None
    message: str


class TextSettingsSchema(BaseModel):
    format: dict[str, Any]
    verbosity: Literal["low", "medium", "high"]


class InputTokenCount(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ConversationSchema(BaseModel):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(BaseModel):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ItemSchema(BaseModel):
    """More fields tell what it says."""

    id: str
    type: ItemType


class ItemList(BaseModel):
    object: Literal["list"]
    data: list[ItemSchema]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseSchema(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    background: bool
    status: Literal["completed", "incomplete", "queued", "in_progress", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextSettingsSchema
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponsesUsage | None
