"""Our requests in SGLang's terms, and its answers in ours."""

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pdmux_actor.backends.sglang.snapshot import DONE_KEY, SLO_KEY
from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    LogitsProcessing,
    SampledToken,
    StructuredKind,
    StructuredOutput,
    TokenEvent,
)

_FORMS: Mapping[StructuredKind, str] = MappingProxyType(
    {
        StructuredKind.JSON_SCHEMA: "json_schema",
        StructuredKind.REGEX: "regex",
        StructuredKind.GRAMMAR: "ebnf",
        StructuredKind.STRUCTURAL_TAG: "structural_tag",
    }
)


def generate_arguments(request: GenerateRequest, request_id: str, max_len: int) -> dict[str, Any]:
    """Builds the arguments of `Engine.async_generate`. Tokens that another unit produced already are part of the
    prompt; prompt and output are at most `max_len`.
    """
    sampling, done = request.sampling, len(request.output_token_ids)
    known = len(request.prompt_token_ids) + done
    params: dict[str, Any] = {
        "max_new_tokens": min(sampling.max_tokens - done, max_len - known),
        "min_new_tokens": max(0, sampling.min_tokens - done),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "ignore_eos": sampling.ignore_eos,
        "sampling_seed": sampling.seed,
        "custom_params": {SLO_KEY: [time.monotonic(), request.slo.ttft_s, request.slo.tbt_s], DONE_KEY: done},
    }
    if sampling.structured_output is not None:
        params |= _form(sampling.structured_output)
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.processing is not None:
        params |= _processing(sampling.processing, request.output_token_ids)
    arguments: dict[str, Any] = {
        "input_ids": [*request.prompt_token_ids, *request.output_token_ids],
        "sampling_params": params,
        "rid": request_id,
        "stream": True,
    }
    if request.cache_salt:
        arguments["cache_salt"] = request.cache_salt
    if sampling.logprobs is not None:
        arguments |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": sampling.logprobs}
    return arguments


def _form(form: StructuredOutput) -> dict[str, str]:
    if form.kind is StructuredKind.CHOICE:
        return {"regex": "|".join(f"({re.escape(choice)})" for choice in json.loads(form.text))}
    return {_FORMS[form.kind]: form.text}


def _processing(processing: LogitsProcessing, begun: Sequence[int]) -> dict[str, Any]:
    """SGLang counts what it generates itself: what another unit did goes into the bias. Presence and repetition
    penalties begin anew.
    """
    bias = dict(processing.logit_bias)
    for token_id, times in Counter(begun).items():
        penalty = processing.frequency_penalty * times
        if penalty:
            bias[token_id] = bias.get(token_id, 0.0) - penalty
    return {
        "logit_bias": {str(token_id): value for token_id, value in bias.items()} or None,
        "repetition_penalty": processing.repetition_penalty,
        "frequency_penalty": processing.frequency_penalty,
        "presence_penalty": processing.presence_penalty,
        "min_p": processing.min_p,
    }


def token_event(request: GenerateRequest, chunk: Mapping[str, Any], seen_logprobs: int) -> TokenEvent:
    """One chunk of a stream with incremental output. `seen_logprobs` of its cumulative entries were handed over: 0 with
    the first tokens, which tell what was cached of the prompt.
    """
    meta = chunk["meta_info"]
    finish, error = finish_of(meta.get("finish_reason"))
    if finish in (FinishReason.ABORT, FinishReason.ERROR):
        form = request.sampling.structured_output
        param = form.param if form is not None and error is not None and "grammar" in error.lower() else None
        return TokenEvent(request_id=request.request_id, finish=finish, error=error, param=param)  # repeats a token
    token_ids: Sequence[int] = chunk["output_ids"]
    if request.sampling.logprobs is None:
        tokens = tuple([SampledToken(token_id) for token_id in token_ids])
    else:
        tokens = _with_logprobs(token_ids, meta, seen_logprobs)
    cached = int(meta.get("cached_tokens") or 0) if tokens and not seen_logprobs else 0
    return TokenEvent(
        request_id=request.request_id,
        tokens=tokens,
        finish=finish,
        error=error,
        cached_tokens=min(cached, len(request.prompt_token_ids)),
    )


def finish_of(reason: Mapping[str, Any] | None) -> tuple[FinishReason | None, str | None]:
    match reason:
        case None:
            return None, None
        case {"type": "stop"}:
            return FinishReason.STOP, None
        case {"type": "length"}:
            return FinishReason.LENGTH, None
        case {"type": "abort", "message": str(message), "status_code": int()}:
            return FinishReason.ERROR, f"SGLang refused it: {message}"
        case {"type": "abort"}:
            return FinishReason.ABORT, None
    return FinishReason.ERROR, f"SGLang ended it for a reason that muxfleet does not know: {dict(reason)}"


def _with_logprobs(token_ids: Sequence[int], meta: Mapping[str, Any], seen: int) -> tuple[SampledToken, ...]:
    chosen = meta["output_token_logprobs"]
    skipped = len(chosen) - len(token_ids)  # 0 where SGLang slices them, what was seen where it does not
    assert skipped in (0, seen), f"{len(chosen)} log-probabilities for {len(token_ids)} tokens after {seen}"
    tops = meta.get("output_top_logprobs") or [None] * len(chosen)
    return tuple(
        [
            SampledToken(token_id, logprob, tuple([(alternative[1], alternative[0]) for alternative in top or ()]))
            for token_id, (logprob, *_), top in zip(token_ids, chosen[skipped:], tops[skipped:], strict=True)
        ]
    )
