"""Answers that clients send back as their SDK made them, with what it added."""

from typing import Any

import openai
import pydantic
import pytest
from fake_unit import FakeUnit

MODEL = "demo/bytes"
ASK = [{"role": "user", "content": "Weather in Paris?"}]


class Weather(pydantic.BaseModel):
    """The weather in a city"""

    city: str


async def parsed(sdk: openai.AsyncOpenAI, **form: Any):
    reply = await sdk.chat.completions.parse(model=MODEL, messages=ASK, max_tokens=500, **form)
    return reply.choices[0].message


@pytest.mark.parametrize("padding_characters", [0, 80_000])  # the latter is read another way
async def test_message__sent_back__what_the_sdk_added_is_passed_over(serve, padding_characters: int) -> None:
    served = await serve(FakeUnit(says=lambda _: '{"city": "Rome"}', constrains=True, max_model_len=400_000))
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        said = await parsed(sdk, response_format=Weather)
        called = await parsed(
            sdk,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice={"type": "function", "function": {"name": "Weather"}},
        )
        result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Sunny."}
        refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
        marked = {"type": "text", "text": "Why?", "prompt_cache_breakpoint": {"mode": "explicit"}}
        cached = {"cache_control": {"type": "ephemeral"}}
        held = {"role": "user", "content": [{"type": "text", "text": "Held?", **cached}], **cached}
        spread = {key: value for key, value in called.model_dump().items() if key not in ("content", "audio", "parsed")}
        part = {**spread, "type": "text", "text": "One moment.", "reasoning": "Hm", "reasoning_content": "Hm"}
        spread_over = {"role": "assistant", "content": [part], "tool_calls": called.model_dump()["tool_calls"]}
        for history in (
            [*ASK, said, *ASK],
            [*ASK, called, result],
            [*ASK, called.model_dump(), result],
            [*ASK, refused, {"role": "user", "content": [marked]}],
            [*ASK, held],  # Roo Code
            [*ASK, spread_over, result],  # the Agents SDK for JavaScript
        ):
            padded = [*history, {"role": "user", "content": "x" * padding_characters}]
            tools = [{**openai.pydantic_function_tool(Weather), **cached}]
            await sdk.chat.completions.create(model=MODEL, messages=padded, max_tokens=1, tools=tools)

        liked = {
            **called.model_dump(exclude_none=True),
            "provider_specific_fields": {"refusal": None},
            "thinking_blocks": [{"type": "thinking", "thinking": "Hm", "signature": ""}],
            "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}],
        }  # as LiteLLM does, in Claude Code's name, and Cline
        await sdk.chat.completions.create(model=MODEL, messages=[*ASK, liked, result, padded[-1]], max_tokens=1)

    assert said.parsed == called.tool_calls[0].function.parsed_arguments == Weather(city="Rome")
    assert '{"city": "Rome"}' in bytes(served.units[0].requests[2].prompt_token_ids).decode()
    assert "I will not." in (asked := bytes(served.units[0].requests[5].prompt_token_ids).decode())
    assert "Why?" in asked
    assert len(served.units[0].requests) == 9
