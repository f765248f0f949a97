"""LiteLLM, through its providers for OpenAI-compatible servers, for vLLM and for Anthropic."""

import json
from typing import Annotated

import litellm
import pytest
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "weather"}}


class City(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def asked(request, url, base_url, api_key, model):
    """What every call has in common."""
    api_base = url if request.param == "anthropic" else base_url
    common = {"api_key": api_key, "temperature": 0, "max_tokens": 64, "num_retries": 0}
    return {"model": f"{request.param}/{model}", "api_base": api_base, **common}


def test_litellm__completion__answers_with_usage(base_url, api_key, model) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = litellm.completion(
        model=f"openai/{model}", api_base=base_url, api_key=api_key, messages=messages, temperature=0
    )

    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_litellm__stream__pieces_join_to_the_whole(asked) -> None:
    pieces = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **asked))
    said = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    whole = litellm.stream_chunk_builder(pieces, messages=MESSAGES)

    assert len([piece for piece in said if piece]) > 1
    assert "".join(said) == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 1


def test_litellm__class_as_format__answer_is_of_it(asked) -> None:
    answer = litellm.completion(messages=MESSAGES, response_format=City, **asked)

    City.model_validate_json(answer.choices[0].message.content)


def test_litellm__tool__is_called_and_its_result_is_heard(asked) -> None:
    said = litellm.completion(messages=MESSAGES, tools=[WEATHER], tool_choice=NAMED, **asked)
    (call,) = said.choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."}
    for message in (said.choices[0].message, said.choices[0].message.model_dump()):
        answer = litellm.completion(messages=[*MESSAGES, message, result], tools=[WEATHER], **asked)
        assert answer.usage.prompt_tokens > said.usage.prompt_tokens

    assert said.choices[0].finish_reason == "tool_calls"
    assert list(json.loads(call.function.arguments)) == ["city"]


def test_litellm__responses_and_text_completion__answer(base_url, api_key, model) -> None:
    told = {"api_base": base_url, "api_key": api_key}
    response = litellm.responses(model=f"openai/{model}", input=QUESTION, temperature=0, max_output_tokens=32, **told)
    completion = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="The capital of France is", max_tokens=3, temperature=0, **told
    )

    assert "Paris" in response.output[0].content[0].text
    assert "Paris" in completion.choices[0].text
