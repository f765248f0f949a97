"""The OpenAI Agents SDK, through its models of chat completions and of responses."""

import asyncio
from typing import Annotated

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"
SETTINGS = {"temperature": 0, "max_tokens": 64}


class City(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@function_tool
def weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """Now."""
    return f"Sunny in {city}, 21 degrees."


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def spoken(request, base_url, api_key, model):
    set_tracing_disabled(True)
    return request.param(model, openai.AsyncOpenAI(base_url=base_url, api_key=api_key))


def test_openai_agents__agent__answers_with_usage(base_url, api_key, model) -> None:
    set_tracing_disabled(True)  # traces go to OpenAI
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    agent = Agent("Guide", model=OpenAIResponsesModel(model, client), model_settings=ModelSettings(temperature=0))
    run = Runner.run_sync(agent, "What is the capital of France?")

    assert "Paris" in run.final_output
    assert run.context_wrapper.usage.output_tokens > 1


@pytest.mark.parametrize("streams", [False, True])
def test_openai_agents__tool__is_called_and_its_result_is_heard(spoken, streams) -> None:
    agent = Agent(
        "Guide", model=spoken, tools=[weather], model_settings=ModelSettings(**SETTINGS, tool_choice="weather")
    )

    async def ask():
        if not streams:
            return await Runner.run(agent, QUESTION)
        run = Runner.run_streamed(agent, QUESTION)
        async for _ in run.stream_events():
            pass
        return run

    run = asyncio.run(ask())
    kinds = [item.type for item in run.new_items]

    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
    assert run.new_items[1].output.startswith("Sunny in ")
    assert run.context_wrapper.usage.requests >= 2


def test_openai_agents__class_as_output__is_of_it(spoken) -> None:
    agent = Agent("Guide", model=spoken, output_type=City, model_settings=ModelSettings(**SETTINGS))

    assert isinstance(Runner.run_sync(agent, QUESTION).final_output, City)


def test_openai_agents__second_turn__knows_the_first_by_its_id(base_url, api_key, model) -> None:
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    agent = Agent("Guide", model=OpenAIResponsesModel(model, client), model_settings=ModelSettings(**SETTINGS))
    first = Runner.run_sync(agent, QUESTION)
    second = Runner.run_sync(agent, "Why?", previous_response_id=first.last_response_id)

    assert second.context_wrapper.usage.input_tokens > first.context_wrapper.usage.total_tokens


def test_openai_agents__session_of_conversations__keeps_the_turns(base_url, api_key, model) -> None:
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    agent = Agent("Guide", model=OpenAIResponsesModel(model, client), model_settings=ModelSettings(temperature=0))

    async def talk():
        session = OpenAIConversationsSession(openai_client=client)
        runs = [await Runner.run(agent, question, session=session) for question in (QUESTION, "Why?")]
        items = await session.get_items()
        await session.clear_session()
        return runs, items

    (first, second), items = asyncio.run(talk())

    assert second.context_wrapper.usage.input_tokens > first.context_wrapper.usage.total_tokens
    assert [item["role"] for item in items] == ["user", "assistant"] * 2
    assert items[1]["content"][0]["text"] == first.final_output
