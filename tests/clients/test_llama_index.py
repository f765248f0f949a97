"""LlamaIndex, through OpenAILike."""

from typing import Annotated

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"
PROMPT = "The capital of France is"


class City(BaseModel):
    """A city."""

    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


def weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


@pytest.fixture
def like(base_url, api_key, model):
    """`like(...)` is an LLM with further settings."""
    common = {"temperature": 0, "max_tokens": 64, "max_retries": 0, "context_window": 2048, "is_chat_model": True}
    return lambda **more: OpenAILike(model=model, api_base=base_url, api_key=api_key, **{**common, **more})


def test_llama_index__chat__answers(base_url, api_key, model) -> None:
    llm = OpenAILike(
        model=model, api_base=base_url, api_key=api_key, is_chat_model=True, context_window=2048, temperature=0
    )
    answer = llm.chat([ChatMessage(role="user", content="What is the capital of France?")])

    assert "Paris" in answer.message.content
    assert answer.raw.usage.completion_tokens > 0


def test_llama_index__stream__pieces_join_to_the_whole(like) -> None:
    pieces = list(like().stream_chat([ChatMessage(role="user", content=QUESTION)]))

    assert len([piece for piece in pieces if piece.delta]) > 1
    assert "".join(piece.delta or "" for piece in pieces) == pieces[-1].message.content


@pytest.mark.parametrize("by", ["is_function_calling_model", "should_use_structured_outputs"])
def test_llama_index__structured_output__is_an_instance_of_the_class(like, by) -> None:
    assert isinstance(like(**{by: True}).as_structured_llm(City).complete(QUESTION).raw, City)


def test_llama_index__tool__is_called_and_its_result_is_heard(like) -> None:
    llm, tool = like(is_function_calling_model=True), FunctionTool.from_defaults(weather)
    question = ChatMessage(role="user", content=QUESTION)
    said = llm.chat_with_tools([tool], chat_history=[question], tool_required=True, allow_parallel_tool_calls=False)
    (call,) = llm.get_tool_calls_from_response(said)
    result = ChatMessage(role="tool", content="Sunny.", additional_kwargs={"tool_call_id": call.tool_id})
    answer = llm.chat_with_tools([tool], chat_history=[question, said.message, result])

    assert (call.tool_name, list(call.tool_kwargs)) == ("weather", ["city"])
    assert answer.raw.usage.prompt_tokens > said.raw.usage.prompt_tokens


def test_llama_index__completion__goes_on_with_the_prompt(like) -> None:
    llm = like(is_chat_model=False, max_tokens=3)

    assert "Paris" in llm.complete(PROMPT).text
    assert "".join(piece.delta for piece in llm.stream_complete(PROMPT)) == llm.complete(PROMPT).text
