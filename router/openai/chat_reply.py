"""POST /v1/chat/completions: the reply."""

from collections.abc import Mapping, Sequence
from typing import Any

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import TokenLogprob
from router.errors import RouterError
from router.generation import Output, ToolCall
from router.openai.chat import ChatCompletionRequest
from router.openai.prompt_logprobs import LOWEST_LOGPROB, prompt_logprobs
from router.openai.reply import (
    Choice,
    EventEncoder,
    ReplyHead,
    Usage,
    document,
    finish_name,
    new_head,
)
from router.request_terms import Caller


class ChatReply:
    """`is_legacy`: calls are answered as `function_call`. `prompt_token_ids` where the reply is to carry token ids.
    `prompt_logprobs`: so many alternatives per token of the prompt are shown; None: nothing of it.
    """

    def __init__(
        self,
        head: ReplyHead,
        *,
        with_logprobs: bool,
        usage_is_asked: bool,
        with_reasoning: bool = True,
        is_legacy: bool = False,
        prompt_token_ids: Sequence[int] | None = None,
        prompt_logprobs: int | None = None,
    ) -> None:
        self._head = head
        self._with_logprobs = with_logprobs
        self._with_reasoning = with_reasoning
        self._is_legacy = is_legacy
        self._prompt_token_ids = prompt_token_ids
        self._prompt_logprobs = prompt_logprobs
        self._encoder = EventEncoder(head, "chat.completion.chunk", usage_is_asked=usage_is_asked)
        self._num_calls: dict[int, int] = {}  # of each choice that was opened

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        if usage is None and self._is_plain(output) and index in self._num_calls:
            return self._encoder.content(index, output.text)
        events = b""
        if index not in self._num_calls:
            self._num_calls[index] = 0
            opening = self._chunk(index, {"role": "assistant", "content": ""}, None)
            if self._prompt_token_ids is not None:
                opening["prompt_token_ids"] = self._prompt_token_ids
            events += self._encoder.choice(opening, usage, prompt_token_ids=self._prompt_token_ids)
        if output.reasoning and self._with_reasoning:
            events += self._encoder.choice(self._chunk(index, _reasoning(output.reasoning), None), usage)
        if output.text or self._tells_tokens(output):
            is_thought = output.is_reasoning and not output.text and self._with_reasoning
            chunk = self._chunk(index, _reasoning("") if is_thought else {"content": output.text}, None)
            if self._with_logprobs:
                chunk["logprobs"] = chat_logprobs(output.logprobs)
            if self._prompt_token_ids is not None:
                chunk["token_ids"] = output.token_ids
            events += self._encoder.choice(chunk, usage)
        for call in output.tool_calls:
            place = self._num_calls[index]
            self._num_calls[index] += 1
            delta = {"function_call": _function(call)} if self._is_legacy else _calls([call], first=place)
            events += self._encoder.choice(self._chunk(index, delta, None), usage)
        if output.finish is not None:
            finish = self._finish(output.finish, self._num_calls[index])
            end = {**self._chunk(index, {}, finish), "stop_reason": output.stop_reason}
            events += self._encoder.choice(end, usage)
        return events

    def _is_plain(self, output: Output) -> bool:
        """Says whether its event has a text and nothing else, as most have."""
        told = output.finish is not None or output.reasoning or output.tool_calls or output.logprobs
        return bool(output.text) and not (told or self._with_logprobs or self._prompt_token_ids is not None)

    def _tells_tokens(self, output: Output) -> bool:
        """As vLLM and SGLang do, an event with an empty text says that tokens without one have come."""
        if output.unshown_tokens and output.finish is None:
            return True
        return bool(output.logprobs or (output.token_ids and self._prompt_token_ids is not None))

    def usage_event(self, usage: Usage) -> bytes:
        return self._encoder.usage(usage)

    def failed_event(self, error: RouterError) -> bytes:
        return b""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies = []
        for index, choice in enumerate(choices):
            assert choice.finish is not None, "a document is made of finished choices"
            bodies.append(
                {
                    "index": index,
                    "message": self._message(choice),
                    "logprobs": chat_logprobs(choice.logprobs) if self._with_logprobs else None,
                    "finish_reason": self._finish(choice.finish, len(choice.tool_calls)),
                    "stop_reason": choice.stop_reason,
                    **self._token_ids(choice),
                }
            )
        extra: dict[str, Any] = {}
        if self._prompt_token_ids is not None:
            extra["prompt_token_ids"] = self._prompt_token_ids
        if self._prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs(choices[0].prompt, self._prompt_logprobs)
        return document(self._head, "chat.completion", bodies, usage, extra)

    def _token_ids(self, choice: Choice) -> dict[str, Any]:
        if self._prompt_token_ids is None:
            return {}
        return {"prompt_token_ids": self._prompt_token_ids, "token_ids": choice.token_ids}

    def _message(self, choice: Choice) -> dict[str, Any]:
        content = choice.text if choice.text or not choice.tool_calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning and self._with_reasoning:
            message |= _reasoning(choice.reasoning)
        if choice.tool_calls:
            calls = choice.tool_calls
            message |= {"function_call": _function(calls[0])} if self._is_legacy else _calls(calls)
        return message

    def _finish(self, finish: FinishReason, num_calls: int) -> str:
        if num_calls and finish is FinishReason.STOP:
            return "function_call" if self._is_legacy else "tool_calls"
        return finish_name(finish)

    @staticmethod
    def _chunk(index: int, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def chat_reply(request: ChatCompletionRequest, caller: Caller, prompt_token_ids: Sequence[int]) -> ChatReply:
    return ChatReply(
        new_head("chatcmpl-", request.model, service_tier=caller.service_tier if request.service_tier else None),
        with_logprobs=request.asked_logprobs is not None,
        usage_is_asked=request.include_usage,
        with_reasoning=request.shows_reasoning,
        is_legacy=request.tool_use.is_legacy,
        prompt_token_ids=prompt_token_ids if request.return_token_ids else None,
        prompt_logprobs=request.prompt_logprobs,
    )


def _reasoning(text: str) -> dict[str, str]:
    """Under both names that clients look for."""
    return {"reasoning": text, "reasoning_content": text}


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def _calls(calls: Sequence[ToolCall], first: int | None = None) -> dict[str, Any]:
    """With `first`, deltas of a stream, counted from there."""
    said: list[dict[str, Any]] = [{"id": c.call_id, "type": "function", "function": _function(c)} for c in calls]
    if first is not None:
        said = [{"index": first + place, **call} for place, call in enumerate(said)]
    return {"tool_calls": said}


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": logprob_entries(logprobs), "refusal": None}


def logprob_entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            "token": entry.token,
            "logprob": max(entry.logprob, LOWEST_LOGPROB),
            "bytes": entry.bytes,
            "top_logprobs": [
                {"token": top.token, "logprob": max(top.logprob, LOWEST_LOGPROB), "bytes": top.bytes}
                for top in entry.top
            ],
        }
        for entry in logprobs
    ]
