"""Pydantic AI, through its models of chat completions, of responses and of messages."""

import asyncio
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the capital of France?"
SETTINGS = {"max_tokens": 64, "parallel_tool_calls": False}


class City(BaseModel):
    """A city."""

    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@pytest.fixture(params=["chat", "responses", "anthropic"])
def spoken(request, url, base_url, api_key, model):
    match request.param:
        case "chat":
            return OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key=api_key))
        case "responses":
            return OpenAIResponsesModel(model, provider=OpenAIProvider(base_url=base_url, api_key=api_key))
    return AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key=api_key))


def test_pydantic_ai__agent__answers_with_usage(base_url, api_key, model) -> None:
    provider = OpenAIProvider(base_url=base_url, api_key=api_key)
    agent = Agent(OpenAIChatModel(model, provider=provider), model_settings={"temperature": 0})
    run = agent.run_sync("What is the capital of France?")

    assert "Paris" in run.output
    assert run.usage.requests == 1
    assert run.usage.output_tokens > 0


def test_pydantic_ai__output_type__is_filled_by_a_tool(spoken) -> None:
    run = Agent(spoken, output_type=City, model_settings=SETTINGS, retries=0).run_sync(QUESTION)

    assert isinstance(run.output, City)
    assert [type(part) for part in run.all_messages()[1].parts] == [ToolCallPart]


def test_pydantic_ai__native_output__is_filled_by_the_schema(spoken) -> None:
    if isinstance(spoken, AnthropicModel):
        pytest.skip("Pydantic AI sends schemas to models of Anthropic's names only")
    run = Agent(spoken, output_type=NativeOutput(City), model_settings=SETTINGS, retries=0).run_sync(QUESTION)

    assert isinstance(run.output, City)


def test_pydantic_ai__output_refused_once__model_is_asked_again(spoken) -> None:
    agent = Agent(spoken, output_type=City, model_settings=SETTINGS, retries=1)
    refused = []

    @agent.output_validator
    def first_is_wrong(city: City) -> City:
        if not refused:
            refused.append(city)
            raise ModelRetry("Say it once more.")
        return city

    run = agent.run_sync(QUESTION)

    assert len(refused) == 1
    assert run.usage.requests == 2


def test_pydantic_ai__stream__pieces_join_to_the_whole(spoken) -> None:
    async def streamed() -> tuple[list[str], str, int]:
        async with Agent(spoken, model_settings=SETTINGS).run_stream(QUESTION) as run:
            pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
            return pieces, await run.get_output(), run.usage.output_tokens

    pieces, whole, output_tokens = asyncio.run(streamed())
    assert len(pieces) > 1
    assert "".join(pieces) == whole
    assert output_tokens > 1
