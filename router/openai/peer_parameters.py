"""Parameters of vLLM's and SGLang's own: those without effect here, and those of which only the value that changes
nothing is taken. docs/api.md lists them for users.

From `ChatCompletionRequest` and `CompletionRequest` of vLLM 0.14's and SGLang 0.5.23's protocols.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from router.openai.request_part import Empty, EmptyObject, Integer, RequestPart

OnlyFalse = Literal[False] | None
OnlyTrue = Literal[True] | None
_Number = Annotated[Integer, Field(ge=-(2**63), le=2**63 - 1)]
_Name = Annotated[str, Field(max_length=1024)]


class InertPeerParameters(RequestPart):
    """Ignoring any of these gives the answer that it would have given."""

    request_id: _Name | None = None
    rid: _Name | list[_Name] | None = None
    spaces_between_special_tokens: bool | None = None  # of slow tokenizers; ours are the fast ones
    length_penalty: float | None = None  # of beam search only
    truncation_side: Literal["left", "right"] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None  # prompts are text
    media_io_kwargs: dict[str, Any] | None = None
    images_config: dict[str, Any] | None = None
    return_mm_kwargs: bool | None = None
    return_token_offsets: bool | None = None  # as in vLLM: only /render answers it
    routed_experts_prompt_start: _Number | None = None
    routed_experts_start_len: _Number | None = None
    stream_interval: _Number | None = None
    guided_decoding_backend: _Name | None = None
    routed_dp_rank: _Number | None = None
    disagg_prefill_dp_rank: _Number | None = None
    data_parallel_rank: _Number | None = None
    ngram_corpus_id: _Name | None = None
    custom_labels: dict[str, str] | None = None


class RefusedPeerParameters(RequestPart):
    """Each of these would change the answer, or add to it what is not to be had here."""

    use_beam_search: OnlyFalse = None
    watermarking: OnlyFalse = None
    truncate_prompt_tokens: None = None
    allowed_token_ids: Empty | None = None
    logprob_token_ids: None = None
    return_tokens_as_token_ids: OnlyFalse = None
    logits_processors: Empty | None = None
    guided_whitespace_pattern: None = None
    kv_transfer_params: EmptyObject | None = None
    ec_transfer_params: EmptyObject | None = None
    vllm_xargs: EmptyObject | None = None
    repetition_detection: EmptyObject | None = None
    stop_regex: Empty | None = None
    lora_path: None = None
    session_params: EmptyObject | None = None
    custom_params: EmptyObject | None = None
    custom_logit_processor: None = None
    bootstrap_host: None = None
    bootstrap_port: None = None
    bootstrap_room: None = None
    return_hidden_states: OnlyFalse = None
    return_routed_experts: OnlyFalse = None
    return_cached_tokens_details: OnlyFalse = None


class InertChatParameters(RequestPart):
    stream_reasoning: bool | None = None
    max_dynamic_patch: _Number | None = None
    min_dynamic_patch: _Number | None = None
    use_audio_in_video: bool | None = None
    task: _Name | None = None  # SGLang: of one DeepSeek encoder, ignored by all others


class RefusedChatParameters(RequestPart):
    chat_template: None = None
    return_prompt_text: OnlyFalse = None
    return_prompt_token_ids: OnlyFalse = None
    return_meta_info: OnlyFalse = None
    separate_reasoning: OnlyTrue = None
    input_ids: None = None


class RefusedCompletionParameters(RequestPart):
    prompt_embeds: None = None


INERT_PEER_PARAMETERS = frozenset({*InertPeerParameters.model_fields, *InertChatParameters.model_fields})
REFUSED_PEER_PARAMETERS = frozenset(
    {
        *RefusedPeerParameters.model_fields,
        *RefusedChatParameters.model_fields,
        *RefusedCompletionParameters.model_fields,
    }
)
