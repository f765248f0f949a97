"""/v1/responses as OpenAI's SDK meets it: a unit says what a model would."""

import json

import httpx
import openai
import pydantic
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from test_tools import CALL, HERMES, SCHEMA

from router.errors import ResponseNotFound
from router.limits import GatewayLimits
from router.openai.foreign_body import message
from router.responses.input_items import InputItem
from router.responses.response_store import ResponseStore
from router.responses.schemas import ResponseSchema

MODEL = "demo/bytes"
WEATHER = {"type": "function", "name": "weather", "description": "Now", "parameters": SCHEMA}
THOUGHT = "<think>\nLook it up.\n</think>\n\nOne moment.\n" + CALL % "Paris"


@pytest.fixture
async def talk(serve, tmp_path):
    """`talk(text)` is a client of a fleet whose model says `text`."""
    clients = []

    async def start(text: str, **unit) -> openai.AsyncOpenAI:
        served = await serve(FakeUnit(says=lambda _: text, **unit))
        served.folder = write_byte_tokenizer(tmp_path / "hermes", chat_template=HERMES)
        served.show(*served.units)
        sdk = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        sdk.unit, sdk.url = served.units[0], served.url
        clients.append(sdk)
        return sdk

    yield start
    for client in clients:
        await client.close()


async def ask(sdk: openai.AsyncOpenAI, **body):
    return await sdk.responses.create(**{"model": MODEL, "input": "Weather in Paris?", **body})


def prompt_of(sdk) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


async def test_response__text__is_what_the_document_says(talk) -> None:
    sdk = await talk("Sunny.")
    response = await ask(sdk, instructions="Be brief.", max_output_tokens=50, temperature=0.5, metadata={"a": "b"})
    async with httpx.AsyncClient(base_url=sdk.url, timeout=60) as http:
        plain = await http.post("/v1/responses", json={"model": MODEL, "input": "hi"})

    assert (response.output_text, response.status, response.model) == ("Sunny.", "completed", MODEL)
    prompt_tokens = len(sdk.unit.requests[0].prompt_token_ids)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (prompt_tokens, 6)
    assert bytes(sdk.unit.requests[0].prompt_token_ids).startswith(b"<|im_start|>system\nBe brief.<|im_end|>\n")
    assert (sdk.unit.requests[0].sampling.max_tokens, sdk.unit.requests[0].sampling.temperature) == (50, 0.5)
    assert ResponseSchema.model_validate_json(plain.content).model_dump() == plain.json()
    assert openai.types.responses.Response.model_validate_json(plain.content).id


async def test_response__cut_off__is_incomplete(talk) -> None:
    sdk = await talk("Sunny and warm.")
    response = await ask(sdk, max_output_tokens=5)

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("stream", [False, True])
async def test_response__thinking_text_and_call__are_items_in_order(talk, stream) -> None:
    sdk = await talk(THOUGHT)
    if stream:
        async with sdk.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as events:
            seen = [event async for event in events]
            response = await events.get_final_response()
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert (seen[0].type, seen[-1].type) == ("response.created", "response.completed")
        said = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        assert said == "One moment."
    else:
        response = await ask(sdk, tools=[WEATHER])

    reasoning, text, call = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Look it up.")
    assert (text.type, text.content[0].text) == ("message", "One moment.")
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Paris"})
    assert response.usage.output_tokens == len(THOUGHT)
    assert response.usage.output_tokens_details.reasoning_tokens > 10


async def test_response__fails_in_its_midst__event_says_why_before_the_error(serve) -> None:
    served = await serve(FakeUnit(fuse=[5]), limits=GatewayLimits(max_attempts=1))
    seen = []
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as sdk:
        stream = await ask(sdk, stream=True)
        with pytest.raises(openai.APIError) as raised:
            await gather(stream, seen)

    failed = seen[-1]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert (failed.type, failed.response.status, failed.response.error.code) == (
        "response.failed",
        "failed",
        "unit_lost",
    )
    assert failed.response.error.message == raised.value.message
    assert failed.response.id == seen[0].response.id


@pytest.mark.parametrize("stream", [False, True])
async def test_response__goes_on_by_id__the_whole_conversation_reaches_the_template(talk, stream) -> None:
    sdk = await talk(THOUGHT)
    if stream:
        events = [event async for event in await ask(sdk, tools=[WEATHER], stream=True)]
        first = events[-1].response
    else:
        first = await ask(sdk, tools=[WEATHER])
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "21 degrees"}
    second = await ask(sdk, previous_response_id=first.id, input=[result], tools=[WEATHER])

    assert second.previous_response_id == first.id
    assert (
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n"
        "<|im_start|>assistant\n<think>Look it up.</think>One moment.<tool_call>weather:Paris</tool_call><|im_end|>\n"
        "<|im_start|>tool\n21 degrees<|im_end|>\n<|im_start|>assistant\n"
    ) in prompt_of(sdk)


async def test_response__items_sent_back__are_the_same_conversation(talk) -> None:
    sdk = await talk(THOUGHT)
    first = await ask(sdk, tools=[WEATHER], store=False)
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Paris?"}]},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "21 degrees"},
    ]
    await ask(sdk, input=items, tools=[WEATHER])

    assert (
        "<|im_start|>assistant\n<think>Look it up.</think>One moment.<tool_call>weather:Paris</tool_call><|im_end|>\n"
        "<|im_start|>tool\n21 degrees<|im_end|>\n"
    ) in prompt_of(sdk)


async def test_response__not_stored_or_unknown__404_says_what_to_do(talk) -> None:
    sdk = await talk("Sunny.")
    first = await ask(sdk, store=False)
    for response_id in (first.id, "resp-unknown"):
        with pytest.raises(openai.BadRequestError, match="Send the whole conversation") as missing:
            await ask(sdk, previous_response_id=response_id)
        assert (missing.value.code, missing.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_response__pydantic_format__is_enforced_and_parsed(talk) -> None:
    class Weather(pydantic.BaseModel):
        city: str

    sdk = await talk('{"city": "Paris"}', constrains=True)
    response = await sdk.responses.parse(model=MODEL, input="Weather?", text_format=Weather)

    assert response.output_parsed == Weather(city="Paris")
    assert json.loads(sdk.unit.requests[0].sampling.structured_output.text)["required"] == ["city"]


async def test_response__strict_format__schema_that_cannot_be_kept_to_is_refused(talk) -> None:
    sdk = await talk("never said", constrains=True)
    odd = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}}
    form = {"type": "json_schema", "name": "odd", "schema": odd, "strict": True}
    with pytest.raises(openai.BadRequestError, match="cannot be held to"):
        await ask(sdk, text={"format": form})


@pytest.mark.parametrize(("said", "most"), [("Sunny and warm.", 5), (THOUGHT, 500), (THOUGHT, 12)])
async def test_response__stream_or_whole__items_are_the_same(talk, said, most) -> None:
    sdk = await talk(said)
    whole = await ask(sdk, max_output_tokens=most, tools=[WEATHER])
    events = [event async for event in await ask(sdk, max_output_tokens=most, tools=[WEATHER], stream=True)]
    streamed = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]

    assert [shown(item) for item in streamed.output] == [shown(item) for item in whole.output]
    assert [shown(item) for item in done] == [shown(item) for item in whole.output]
    assert streamed.status == whole.status


async def gather(stream: openai.AsyncStream, seen: list) -> None:
    """What came before an error stays in `seen`."""
    async for event in stream:
        seen.append(event)  # noqa: PERF401  (with an error all would be lost)


def shown(item) -> dict:
    return item.model_dump(exclude={"id", "call_id"})


async def test_response__tool_is_required__call_follows_the_schema(talk) -> None:
    sdk = await talk('{"city": "Rome"}', constrains=True)
    response = await ask(sdk, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})

    assert [(item.type, item.arguments) for item in response.output] == [("function_call", '{"city": "Rome"}')]


@pytest.mark.parametrize("stream", [False, True])
async def test_response__text_settings__are_told_as_they_hold(talk, stream) -> None:
    sdk = await talk("{}", constrains=True)
    plain = await ask(sdk)
    schema = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": False}
    asked = await ask(sdk, text={"verbosity": "low", "format": schema}, stream=stream)
    response = [event async for event in asked][-1].response if stream else asked

    assert (plain.text.format.type, plain.text.verbosity) == ("text", "medium")
    assert (response.text.verbosity, response.text.format.to_dict() | schema) == ("low", response.text.format.to_dict())


async def test_response__tools_that_openai_runs__are_left_out(talk) -> None:
    sdk = await talk("Sunny.")
    await ask(sdk, tools=[{"type": "web_search"}, WEATHER])

    assert prompt_of(sdk).startswith("<tools>weather;</tools>")


async def test_response__allowed_tools__model_is_told_of_these_only(talk) -> None:
    sdk = await talk("Sunny.")
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "web_search"}, {"type": "function", "name": "weather"}],
    }
    time = {"type": "function", "name": "time", "parameters": SCHEMA}
    response = await ask(sdk, tools=[time, WEATHER], tool_choice=choice, max_output_tokens=50.0)

    assert prompt_of(sdk).startswith("<tools>weather;</tools>")
    assert response.tool_choice.type == "allowed_tools"
    assert (response.max_output_tokens, sdk.unit.requests[0].sampling.max_tokens) == (50, 50)
    assert response.id.startswith("resp_")


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"input": []}, "input", "1 to"),
        ({"input": [{"type": "compaction", "id": "x"}]}, "input[0].type", "compaction"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'input_image' is not implemented",
        ),
        ({"background": True, "store": False}, "store", "is kept"),
        ({"max_output_token": 3}, "max_output_token", "did you mean max_output_tokens?"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "Input should be"),
        ({"max_output_tokens": 0}, "max_output_tokens", "'max_output_tokens'"),
        ({"max_output_tokens": 2.5}, "max_output_tokens", "'max_output_tokens'"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "'tools[0].name'"),
        (
            {"tools": [{**WEATHER, "parameters": {"not": {}}, "strict": True}]},
            "tools[0].parameters.not",
            "'tools[0].parameters.not'",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n" * 65, "schema": {}}}},
            "text.format.name",
            "'text.format.name'",
        ),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"not": {}}, "strict": True}}},
            "text.format.schema.not",
            "'text.format.schema.not'",
        ),
        ({"text": {"format": {"type": "json_object"}}}, "text.format", "leave text.format out"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity", "'text.verbosity'"),
        ({"text": {"formt": {"type": "text"}}}, "text.formt", "supplied: text.formt"),
        (
            {"tools": [{"type": "web_search"}, WEATHER, {**WEATHER, "name": "a b"}]},
            "tools[2].name",
            "'tools[2].name'",
        ),
        (
            {"tools": [{"type": "custom", "name": "x"}, {**WEATHER, "parameters": {"not": {}}, "strict": True}]},
            "tools[1].parameters.not",
            "'tools[1].parameters.not'",
        ),
        ({"input": "x" * 100_000}, "input", "reduce the length of the input"),
        ({"input": "x" * 100_000, "stream": True}, "input", "reduce the length of the input"),
    ],
)
async def test_response__refused__names_the_field(talk, body, param, says) -> None:
    sdk = await talk("never said")
    async with httpx.AsyncClient(base_url=sdk.url, timeout=60) as http:
        reply = await http.post("/v1/responses", json={"model": MODEL, "input": "hi", **body})

    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert says in error["message"]


async def test_store__full_or_of_another_owner__forgets_the_oldest_and_tells_nobody_else() -> None:
    store = ResponseStore(max_responses=2, max_bytes=10_000)
    for name in ("a", "b", "c"):
        store.keep(name, "me", [message("user", name)])
    store.keep("large", "me", [message("user", "x" * 10_000)])

    assert [m.text for m in await store.messages("c", "me")] == ["c"]
    for response_id, owner in (("a", "me"), ("c", "you"), ("large", "me")):
        with pytest.raises(Exception, match="No response"):
            await store.messages(response_id, owner)


async def test_store__other_gateway_gave_the_answer__whole_conversation_comes_from_there() -> None:
    there = ResponseStore()

    async def ask(response_id: str, owner: str) -> bytes | None:
        return there.encoded(response_id, owner)

    said = [
        message("system", ""),
        message("user", "süß?"),
        message("assistant", "", calls=[("id", "weather", '{"city": "Rome"}')], reasoning="look"),
        message("tool", "sunny", call_id="id"),
    ]
    there.keep("resp_1", "me", said)
    here = ResponseStore(ask)

    assert [m.for_template() for m in await here.messages("resp_1", "me")] == [m.for_template() for m in said]
    with pytest.raises(ResponseNotFound):
        await here.messages("resp_1", "you")


@pytest.mark.parametrize("call", [("id", "", "{}"), ("i" * 300, "f", "{}"), ("id", "f" * 300, "{}")])
async def test_store__call_that_no_client_may_send__comes_from_another_gateway_all_the_same(call) -> None:
    """A model may call what it likes, and Responses' items have no such limits."""
    there, here = ResponseStore(), ResponseStore()
    there.keep("resp_1", "me", [message("user", "hm"), message("assistant", "", calls=[call])])
    there.keep("resp_2", "me", [message("user", "next")])
    for copy in there.fresh_copies()[1]:
        here.take(copy)

    kept = await here.messages("resp_1", "me")
    assert [m.for_template() for m in kept] == [m.for_template() for m in await there.messages("resp_1", "me")]
    assert sorted(here.ids()) == ["resp_1", "resp_2"]


async def test_store__item_of_another_gateways_answer__is_asked_for_once() -> None:
    there, asked = ResponseStore(), []

    async def ask(kept_id: str, owner: str) -> bytes | None:
        asked.append(kept_id)
        return there.encoded(kept_id, owner)

    items = {name: InputItem(role="assistant", content=name) for name in ("msg_1", "msg_2")}
    there.keep("resp_1", "me", [message("user", "hm")], items)
    here = ResponseStore(ask)

    assert await here.items(["msg_1", "msg_2"], "me") == items
    assert asked == ["msg_1"]
    with pytest.raises(ResponseNotFound, match="No item"):
        await here.items(["msg_1"], "you")
    with pytest.raises(ResponseNotFound, match="No response"):
        await here.messages("msg_1", "me")


@pytest.mark.parametrize("stream", [False, True])
async def test_response__items_referred_to__are_the_same_conversation(talk, stream) -> None:
    sdk = await talk(THOUGHT)
    if stream:
        first = [event async for event in await ask(sdk, tools=[WEATHER], stream=True)][-1].response
    else:
        first = await ask(sdk, tools=[WEATHER])
    items = [
        {"role": "user", "content": "Weather in Paris?"},
        *[{"type": "item_reference", "id": item.id} for item in first.output],
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "21 degrees"},
    ]
    second = await ask(sdk, input=items, tools=[WEATHER])

    assert (
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n"
        "<|im_start|>assistant\n<think>Look it up.</think>One moment.<tool_call>weather:Paris</tool_call><|im_end|>\n"
        "<|im_start|>tool\n21 degrees<|im_end|>\n"
    ) in prompt_of(sdk)
    third = await ask(sdk, previous_response_id=second.id, input="And?")
    assert third.previous_response_id == second.id


async def test_response__item_not_kept__404_says_what_to_do(talk) -> None:
    sdk = await talk("Sunny.")
    unkept = await ask(sdk, store=False)
    for item_id in (unkept.output[0].id, "msg_unknown"):
        with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as missing:
            await ask(sdk, input=[{"type": "item_reference", "id": item_id}])
        assert (missing.value.code, missing.value.param) == ("item_not_found", "input")
