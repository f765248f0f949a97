"""LangChain, through its packages for OpenAI and for Anthropic."""

from typing import Annotated

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@tool
def weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return "Sunny, 21 degrees."


@pytest.fixture(params=["chat", "responses", "anthropic"])
def chat(request, url, base_url, api_key, model):
    if request.param == "anthropic":
        return ChatAnthropic(base_url=url, api_key=api_key, model=model, temperature=0, max_tokens=64, max_retries=0)
    return ChatOpenAI(
        base_url=base_url,
        api_key=api_key,
        model=model,
        temperature=0,
        max_tokens=64,
        max_retries=0,
        stream_usage=True,
        use_responses_api=request.param == "responses",
    )


def test_langchain_openai__invoke__answers_with_usage(base_url, api_key, model) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key=api_key, model=model, temperature=0)
    answer = chat.invoke("What is the capital of France?")

    assert "Paris" in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["total_tokens"] > answer.usage_metadata["output_tokens"] > 0


def test_langchain_anthropic__invoke__answers_with_usage(url, api_key, model) -> None:
    chat = ChatAnthropic(base_url=url, api_key=api_key, model=model, temperature=0, max_tokens=64)
    answer = chat.invoke("What is the capital of France?")

    assert answer.content
    assert answer.response_metadata["stop_reason"] == "end_turn"
    assert answer.usage_metadata["total_tokens"] > answer.usage_metadata["output_tokens"] > 0


def test_langchain__stream__pieces_sum_to_the_whole(chat) -> None:
    pieces = list(chat.stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece

    said = [piece.text for piece in pieces if piece.text]
    assert len(said) > 1
    assert "".join(said) == whole.text
    assert whole.usage_metadata["output_tokens"] > 1


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain__structured_output__is_an_instance_of_the_class(chat, method) -> None:
    assert isinstance(chat.with_structured_output(City, method=method).invoke(QUESTION), City)


def test_langchain__tool__is_called_and_its_result_is_heard(chat) -> None:
    question = HumanMessage(QUESTION)
    said = chat.bind_tools([weather], tool_choice="weather").invoke([question])
    (call,) = said.tool_calls
    answer = chat.bind_tools([weather]).invoke(
        [question, said, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    )

    assert (call["name"], list(call["args"])) == ("weather", ["city"])
    assert answer.usage_metadata["input_tokens"] > said.usage_metadata["input_tokens"]


def test_langchain__tool_in_a_stream__its_arguments_come_whole(chat) -> None:
    pieces = list(chat.bind_tools([weather], tool_choice="weather").stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece

    assert [(call["name"], list(call["args"])) for call in whole.tool_calls] == [("weather", ["city"])]


def test_langchain__previous_response__goes_on_whichever_gateway_answers(base_url, api_key, model) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key=api_key, model=model, max_tokens=8, use_previous_response_id=True)
    first = chat.invoke(QUESTION)
    for _ in range(4):
        second = chat.invoke([HumanMessage(QUESTION), first, HumanMessage("And of Italy?")])
        assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"] + 8


def test_langchain__logprobs_and_batch__one_each(base_url, api_key, model) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key=api_key, model=model, temperature=0, max_tokens=8)
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    answers = chat.batch([QUESTION, "What is the capital of Italy?"])

    logprobs = scored.response_metadata["logprobs"]["content"]
    assert len(logprobs) == scored.usage_metadata["output_tokens"]
    assert {len(token["top_logprobs"]) for token in logprobs} == {2}
    assert "Paris" in answers[0].content
    assert answers[1].content not in ("", answers[0].content)


def test_langchain__completion__goes_on_with_the_prompt(base_url, api_key, model) -> None:
    completion = OpenAI(base_url=base_url, api_key=api_key, model=model, max_tokens=3, temperature=0)

    assert "Paris" in completion.invoke("The capital of France is")
