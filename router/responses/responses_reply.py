"""POST /v1/responses: the reply."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pdmux_actor.messages import FinishReason
from router.error_bodies import error_body
from router.errors import RouterError
from router.generation import Output, ToolCall
from router.openai.chat_reply import logprob_entries
from router.openai.reply import Choice, ReplyHead, Usage
from router.responses.client_tools import call_item, client_tools
from router.responses.response_items import event_of, message_item, reasoning_item, response_object, text_part
from router.responses.responses_body import ResponsesBody

NUM_QUEUED_EVENTS = 2
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def queued_events(queued: dict[str, Any]) -> bytes:
    """Says what a stream of a response in the background begins with, before anything works on it."""
    kinds = ("response.created", "response.queued")
    return b"".join(event_of(kind, number, response=queued) for number, kind in enumerate(kinds))


class ResponsesReply:
    """Implements ReplyFormat. Every event wants the usage; `keep` is told what was said, and the answer that says it,
    once it is complete.
    """

    def __init__(self, head: ReplyHead, body: ResponsesBody, keep: Callable[[Choice, dict[str, Any]], None]) -> None:
        self._head = head
        self._body = body
        self._keep = keep
        self._called = {tool.name: tool for tool in client_tools(body)}
        self._said = Choice()
        self._output: list[dict[str, Any]] = []  # items that are done
        self._has_begun = False
        self._number = NUM_QUEUED_EVENTS if body.background else 0
        self._open: str | None = None  # kind of the item that is open
        self._item_id = ""
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []  # of the open message, and of tokens before it
        self._num_told = 0  # of them, in deltas

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        events = b"" if self._has_begun else self._begin()
        self._said.add(output)
        self._logprobs += logprob_entries(output.logprobs)
        if output.reasoning:
            events += self._delta("reasoning", output.reasoning)
        if output.text:
            events += self._delta("message", output.text)
        for call in output.tool_calls:
            events += self._call(call)
        if output.finish is not None:
            if not (self._said.text or self._said.tool_calls):  # an answer has one of them, be it empty
                events += self._close() + self._start("message")
            events += self._close(_status(output.finish))
        return events

    def usage_event(self, usage: Usage) -> bytes:
        status = _status(self._said.finish)
        body = response_object(self._head, self._body, status, self._output, usage)
        self._keep(self._said, body)
        return self._event(f"response.{status}", response=body)

    def failed_event(self, error: RouterError) -> bytes:
        """Codex looks for no other event than this one: without it, it knows of a broken stream only. Who works in the
        background tells of it, begun or not.
        """
        if not self._has_begun or self._body.background:
            return b""
        said = error_body(error, "/v1/responses")["error"]
        body = response_object(self._head, self._body, "failed", self._output, None)
        failure = {"code": said["code"], "message": said["message"]}
        return self._event("response.failed", response={**body, "error": failure})

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        status = _status(choice.finish)
        output: list[dict[str, Any]] = []
        if choice.reasoning:
            output.append(reasoning_item(_new_id("rs"), choice.reasoning, "completed"))
        if choice.text or not choice.tool_calls:
            output.append(message_item(_new_id("msg"), choice.text, status, logprob_entries(choice.logprobs)))
        output += [self._item_of(call) for call in choice.tool_calls]
        body = response_object(self._head, self._body, status, output, usage)
        self._keep(choice, body)
        return _encode(body)

    def _begin(self) -> bytes:
        self._has_begun = True
        body = response_object(self._head, self._body, "in_progress", [], None)
        created = b"" if self._number else self._event("response.created", response=body)
        return created + self._event("response.in_progress", response=body)

    def _delta(self, kind: str, text: str) -> bytes:
        events = b""
        if self._open != kind:
            events = self._close() + self._start(kind)
        self._texts.append(text)
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        extra: dict[str, Any] = {}
        if kind == "message":
            extra["logprobs"], self._num_told = self._logprobs[self._num_told :], len(self._logprobs)
        return events + self._event(name, **self._place(), content_index=0, delta=text, **extra)

    def _start(self, kind: str) -> bytes:
        self._open, self._texts = kind, []
        self._item_id = _new_id("msg" if kind == "message" else "rs")
        make = message_item if kind == "message" else reasoning_item
        item = make(self._item_id, None, "in_progress")
        events = self._event("response.output_item.added", output_index=len(self._output), item=item)
        if kind == "message":
            part = text_part("")
            events += self._event("response.content_part.added", **self._place(), content_index=0, part=part)
        return events

    def _close(self, status: str = "completed") -> bytes:
        kind, text = self._open, "".join(self._texts)
        if kind is None:
            return b""
        self._open = None
        if kind == "message":
            logprobs, self._logprobs, self._num_told = self._logprobs, [], 0
            part = text_part(text, logprobs)
            events = self._event(
                "response.output_text.done", **self._place(), content_index=0, text=text, logprobs=logprobs
            ) + self._event("response.content_part.done", **self._place(), content_index=0, part=part)
            return events + self._done(message_item(self._item_id, text, status, logprobs))
        events = self._event("response.reasoning_text.done", **self._place(), content_index=0, text=text)
        return events + self._done(reasoning_item(self._item_id, text, "completed"))

    def _call(self, call: ToolCall) -> bytes:
        events = self._close()
        item = self._item_of(call)
        self._item_id = item["id"]
        kind, said = (
            ("custom_tool_call_input", "input") if "input" in item else ("function_call_arguments", "arguments")
        )
        begun = {**item, said: "", "status": "in_progress"}
        events += self._event("response.output_item.added", output_index=len(self._output), item=begun)
        events += self._event(f"response.{kind}.delta", **self._place(), delta=item[said])
        named = {} if said == "input" else {"name": item["name"]}
        events += self._event(f"response.{kind}.done", **self._place(), **named, **{said: item[said]})
        return events + self._done(item)

    def _item_of(self, call: ToolCall) -> dict[str, Any]:
        tool = self._called.get(call.name)
        item_id = _new_id("ctc" if tool is not None and tool.is_custom else "fc")
        return call_item(item_id, call, self._called, "completed")

    def _done(self, item: dict[str, Any]) -> bytes:
        event = self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return event

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": len(self._output)}

    def _event(self, kind: str, **body: Any) -> bytes:  # noqa: ANN401  (fields of any kind of event)
        event = event_of(kind, self._number, **body)
        self._number += 1
        return event


def _status(finish: FinishReason | None) -> str:
    return "incomplete" if finish is FinishReason.LENGTH else "completed"


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
