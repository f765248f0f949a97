"""Separates answer, reasoning and tool calls, between a generation's outputs and the reply."""

import secrets
import string
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from pdmux_actor.messages import FinishReason
from router.generation import Output, ToolCall
from router.text.calls import ReplyParts
from router.text.replies import OpenedReply

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # Mistral's chat template takes no other


async def read_parts(
    outputs: AsyncGenerator[Output, None], reply: OpenedReply, *, streams: bool, max_calls: int | None
) -> AsyncGenerator[Output, None]:
    """Outputs with their parts apart. Of a reply that does not stream, all of it comes with the last one; calls beyond
    `max_calls` are left out. Of a stream, tokens whose text waits (half a character, a space that may end a part) are
    told as unshown, but for those of a call.
    """
    held: list[Output] = []
    num_calls = 0
    is_call = is_reasoning = False
    async with aclosing(outputs) as coming:
        async for output in coming:
            if output.unshown_tokens and not (output.num_tokens or output.prompt or output.finish is not None):
                if streams and not is_call:
                    yield replace(output, is_reasoning=is_reasoning)
                continue
            held.append(output)
            if not streams and output.finish is None:
                yield replace(output, text="")
                continue
            parts = await reply.read([one.text for one in held], ends=output.finish is not None)
            left = None if max_calls is None else max_calls - num_calls
            merged = _merged(output, parts, [one.num_tokens for one in held], left)
            num_calls += len(merged.tool_calls)
            is_call, is_reasoning = parts[-1].is_call, parts[-1].is_reasoning and not parts[-1].text
            held.clear()
            yield merged


async def without_completion(outputs: AsyncGenerator[Output, None]) -> AsyncGenerator[Output, None]:
    """Outputs of a request that asks for nothing but its prompt (`max_tokens` 0): without the one token that an engine
    generates to every prompt.
    """
    async with aclosing(outputs) as coming:
        async for output in coming:
            finish = None if output.finish is None else FinishReason.LENGTH
            told = replace(output, text="", num_tokens=0, logprobs=(), token_ids=(), unshown_tokens=0, finish=finish)
            yield replace(told, stop="", stop_token_id=None)


def _merged(output: Output, parts: list[ReplyParts], num_tokens: list[int], max_calls: int | None) -> Output:
    calls = [call for part in parts for call in part.tool_calls][:max_calls]
    text, reasoning = "".join(part.text for part in parts), "".join(part.reasoning for part in parts)
    is_shown = bool(text or reasoning or calls) or parts[-1].is_call
    return replace(
        output,
        text=text,
        reasoning=reasoning,
        unshown_tokens=0 if is_shown else output.num_tokens,
        is_reasoning=parts[-1].is_reasoning,
        tool_calls=tuple(ToolCall(call_id=_call_id(), name=call.name, arguments=call.arguments) for call in calls),
        reasoning_tokens=sum(tokens for part, tokens in zip(parts, num_tokens, strict=True) if part.is_reasoning),
    )


def _call_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
