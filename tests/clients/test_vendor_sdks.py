"""The SDKs of OpenAI and Anthropic. What a model of 135 M parameters would not choose is forced."""

import json
from typing import Annotated, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"
ASKED = [{"role": "user", "content": QUESTION}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS}
WEATHER_OF_ANTHROPIC = {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS}


class City(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@pytest.fixture
def openai_sdk(base_url, api_key):
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_sdk(url, api_key):
    with anthropic.Anthropic(base_url=url, api_key=api_key, max_retries=0) as client:
        yield client


def test_openai__chat__answers_with_usage(base_url, api_key, model) -> None:
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0)

    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == model


def test_openai__streaming_helper__pieces_join_to_the_whole(openai_sdk, model) -> None:
    with openai_sdk.chat.completions.stream(
        model=model, messages=ASKED, temperature=0, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.get_final_completion()

    assert len(pieces) > 1
    assert "".join(pieces) == whole.choices[0].message.content
    said = b"".join(bytes(token.bytes) for token in whole.choices[0].logprobs.content).decode()
    assert said.startswith(whole.choices[0].message.content)
    assert whole.usage.completion_tokens == len(whole.choices[0].logprobs.content)


def test_openai__stop_length_and_n__end_as_asked(openai_sdk, model) -> None:
    stopped = openai_sdk.chat.completions.create(model=model, messages=ASKED, temperature=0, stop=[" Paris"], n=2)
    cut = openai_sdk.chat.completions.create(model=model, messages=ASKED, temperature=0, max_completion_tokens=2)

    assert [choice.finish_reason for choice in stopped.choices] == ["stop", "stop"]
    assert all("Paris" not in choice.message.content for choice in stopped.choices)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)


def test_openai__parse__is_an_instance_of_the_class(openai_sdk, model) -> None:
    answer = openai_sdk.chat.completions.parse(model=model, messages=ASKED, response_format=City, temperature=0)

    assert isinstance(answer.choices[0].message.parsed, City)


def test_openai__tool_in_a_stream__its_arguments_parse_and_its_result_is_heard(openai_sdk, model) -> None:
    class Weather(BaseModel):
        """The weather in a city"""

        city: Annotated[str, Field(max_length=20)]

    tools = [openai.pydantic_function_tool(Weather)]
    chosen = {"type": "function", "function": {"name": "Weather"}}
    with openai_sdk.chat.completions.stream(
        model=model, messages=ASKED, tools=tools, tool_choice=chosen, temperature=0
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        said = stream.get_final_completion().choices[0]
    (call,) = said.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."}
    follow_up = [*ASKED, said.message.model_dump(exclude={"parsed"}), result]
    answer = openai_sdk.chat.completions.create(model=model, messages=follow_up, max_tokens=8, temperature=0)
    without = openai_sdk.chat.completions.create(model=model, messages=ASKED, max_tokens=8, temperature=0)

    assert said.finish_reason == "tool_calls"
    assert [event.parsed_arguments for event in done] == [call.function.parsed_arguments]
    assert isinstance(call.function.parsed_arguments, Weather)
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens
    assert answer.choices[0].message.content


def test_openai__completion__goes_on_with_the_prompt(openai_sdk, model) -> None:
    prompt = "The capital of France is"
    answer = openai_sdk.completions.create(model=model, prompt=prompt, max_tokens=3, temperature=0)

    assert "Paris" in answer.choices[0].text


def test_openai__response_in_a_stream__pieces_join_and_the_format_is_parsed(openai_sdk, model) -> None:
    with openai_sdk.responses.stream(model=model, input=QUESTION, text_format=City, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()

    assert "".join(pieces) == response.output_text
    assert isinstance(response.output_parsed, City)
    assert response.status == "completed"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_openai__response_with_a_tool__its_arguments_parse(openai_sdk, model) -> None:
    response = openai_sdk.responses.create(
        model=model,
        input=QUESTION,
        tools=[{"type": "function", "strict": True, **WEATHER}],
        tool_choice={"type": "function", "name": "weather"},
        temperature=0,
    )
    (call,) = response.output

    assert call.type == "function_call"
    assert list(json.loads(call.arguments)) == ["city"]


def test_openai__wrong_key_and_wrong_model__raise_their_errors(openai_sdk, base_url, model) -> None:
    assert [listed.id for listed in openai_sdk.models.list()] == [model]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        openai_sdk.chat.completions.create(model="no-such-model", messages=ASKED)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=base_url, api_key="wrong").models.list()


def test_anthropic__message__answers_with_usage(url, api_key, model) -> None:
    client = anthropic.Anthropic(base_url=url, api_key=api_key)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    message = client.messages.create(model=model, max_tokens=64, messages=messages, extra_body={"temperature": 0})

    assert "Paris" in message.content[0].text
    assert message.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model=model, messages=messages)
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_anthropic__streaming_helper__pieces_join_to_the_whole(anthropic_sdk, model) -> None:
    with anthropic_sdk.messages.stream(
        model=model, max_tokens=64, messages=ASKED, extra_body={"temperature": 0}
    ) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()

    assert len(pieces) > 1
    assert "".join(pieces) == message.content[0].text
    assert message.usage.output_tokens > 1


def test_anthropic__tool_in_a_stream__its_input_parses_and_its_result_is_heard(anthropic_sdk, model) -> None:
    asked = {"model": model, "max_tokens": 64, "tools": [WEATHER_OF_ANTHROPIC]}
    choice = {"type": "tool", "name": "weather"}
    with anthropic_sdk.messages.stream(messages=ASKED, tool_choice=choice, **asked) as stream:
        said = stream.get_final_message()
    (call,) = said.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees."}
    follow_up = [*ASKED, {"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
    answer = anthropic_sdk.messages.create(messages=follow_up, **asked)
    counted = anthropic_sdk.messages.count_tokens(model=model, messages=ASKED, tools=[WEATHER_OF_ANTHROPIC])

    assert (said.stop_reason, call.name, list(call.input)) == ("tool_use", "weather", ["city"])
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > counted.input_tokens


def test_anthropic__parse__is_an_instance_of_the_class(anthropic_sdk, model) -> None:
    class Capital(BaseModel):
        city: Literal["Paris", "Rome"]  # lengths of strings the SDK leaves out

    message = anthropic_sdk.messages.parse(model=model, max_tokens=128, messages=ASKED, output_format=Capital)

    assert isinstance(message.parsed_output, Capital)


def test_anthropic__wrong_key_and_cut_off__are_told(anthropic_sdk, url, model) -> None:
    cut = anthropic_sdk.messages.create(model=model, max_tokens=2, messages=ASKED)

    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="wrong").messages.count_tokens(model=model, messages=ASKED)
