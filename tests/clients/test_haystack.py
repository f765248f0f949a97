"""Haystack, through its generators of chat completions and of responses."""

import pytest
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

QUESTION = "What is the capital of France?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
WEATHER = Tool(name="weather", description="Now", parameters=PARAMETERS, function=lambda city: "Sunny.")
NAMED = {
    "chat": {"type": "function", "function": {"name": "weather"}},
    "responses": {"type": "function", "name": "weather"},
}
MOST = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}
KINDS = {"chat": OpenAIChatGenerator, "responses": OpenAIResponsesChatGenerator}


@pytest.fixture(params=["chat", "responses"])
def made(request, base_url, api_key, model):
    """`made(...)` is a generator; its `choice` names the tool."""

    def make(**more):
        secret = Secret.from_token(api_key)
        told = {"temperature": 0, MOST[request.param]: 64}
        made = KINDS[request.param](
            model=model, api_base_url=base_url, api_key=secret, generation_kwargs=told, max_retries=0, **more
        )
        made.choice = {"tool_choice": NAMED[request.param]}
        return made

    return make


def test_haystack__generator__answers_with_usage(base_url, api_key, model) -> None:
    generator = OpenAIChatGenerator(
        model=model, api_base_url=base_url, api_key=Secret.from_token(api_key), generation_kwargs={"temperature": 0}
    )
    replies = generator.run([ChatMessage.from_user("What is the capital of France?")])["replies"]

    assert "Paris" in replies[0].text
    assert replies[0].meta["usage"]["completion_tokens"] > 1


def test_haystack__stream__pieces_join_to_the_whole(made) -> None:
    pieces = []
    (reply,) = made(streaming_callback=pieces.append).run([ChatMessage.from_user(QUESTION)])["replies"]

    assert len(pieces) > 2
    assert "".join(piece.content for piece in pieces) == reply.text
    assert "Paris" in reply.text


@pytest.mark.parametrize("streams", [False, True])
def test_haystack__tool__is_called_and_its_result_is_heard(made, streams) -> None:
    generator = made(tools=[WEATHER], streaming_callback=(lambda piece: None) if streams else None)
    asked = [ChatMessage.from_user(QUESTION)]
    (said,) = generator.run(asked, generation_kwargs=generator.choice)["replies"]
    (call,) = said.tool_calls
    result = ChatMessage.from_tool(tool_result=WEATHER.invoke(**call.arguments), origin=call)
    (answer,) = generator.run([*asked, said, result])["replies"]

    assert (call.tool_name, list(call.arguments)) == ("weather", ["city"])
    assert answer.text or answer.tool_calls
