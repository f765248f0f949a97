"""smolagents, through its model for OpenAI-compatible servers."""

import json
from typing import ClassVar

import pytest
from smolagents import ChatMessage, OpenAIServerModel, Tool

QUESTION = [ChatMessage(role="user", content="What is the capital of France?")]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}


class Weather(Tool):
    name = "weather"
    description = "Now"
    inputs: ClassVar = {"city": {"type": "string", "description": "Where", "enum": ["Paris", "Rome"]}}
    output_type = "string"

    def forward(self, city):
        return f"Sunny in {city}."


@pytest.fixture
def spoken(base_url, api_key, model):
    return OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key, temperature=0, max_tokens=64)


def test_smolagents__model__answers_with_usage(base_url, api_key, model) -> None:
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key, temperature=0)
    answer = served.generate([ChatMessage(role="user", content="What is the capital of France?")])

    assert "Paris" in answer.content
    assert answer.token_usage.output_tokens > 1


def test_smolagents__stream__has_usage_and_pieces(spoken) -> None:
    pieces = list(spoken.generate_stream(QUESTION))

    assert "Paris" in "".join(piece.content or "" for piece in pieces)
    assert sum(piece.token_usage.output_tokens for piece in pieces if piece.token_usage) > 1


def test_smolagents__format__answer_is_of_it(spoken) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}

    assert list(json.loads(spoken.generate(QUESTION, response_format=form).content)) == ["city"]


def test_smolagents__tool__must_be_called_and_is(spoken) -> None:
    answer = spoken.generate(QUESTION, tools_to_call_from=[Weather()])
    (call, *_) = answer.tool_calls

    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
