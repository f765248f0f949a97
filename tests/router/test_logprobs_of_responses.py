"""/v1/responses tells the log-probabilities of its text where `include` asks for them, as OpenAI's SDK reads them."""

import openai
import pytest
from fake_unit import FakeUnit

MODEL = "demo/bytes"
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture
async def sdk(serve):
    served = await serve(FakeUnit(says=lambda _: "Für 😀!"))
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        yield client


async def test_logprobs__whole__are_those_of_every_token(sdk) -> None:
    made = await sdk.responses.create(model=MODEL, input="hi", include=[LOGPROBS], top_logprobs=2)
    part = made.output[0].content[0]

    assert bytes(byte for one in part.logprobs for byte in one.bytes).decode() == part.text == "Für 😀!"
    assert {one.logprob for one in part.logprobs} == {-0.5}
    assert {len(one.top_logprobs) for one in part.logprobs} == {2}


async def test_logprobs__streamed__each_is_in_one_delta_and_all_are_in_what_is_done(sdk) -> None:
    events = [
        event async for event in await sdk.responses.create(model=MODEL, input="hi", include=[LOGPROBS], stream=True)
    ]
    told = [one for e in events if e.type == "response.output_text.delta" for one in e.logprobs]
    done = next(e for e in events if e.type == "response.output_text.done")
    whole = await sdk.responses.create(model=MODEL, input="hi", include=[LOGPROBS])

    assert [one.token for one in told] == [one.token for one in done.logprobs]
    assert events[-1].response.output[0].content == whole.output[0].content
    assert len(told) == len("Für 😀!".encode())
    assert next(e for e in events if e.type == "response.content_part.done").part.logprobs == (
        whole.output[0].content[0].logprobs
    )


async def test_logprobs__not_asked_for__are_none(sdk) -> None:
    made = await sdk.responses.create(model=MODEL, input="hi", include=["reasoning.encrypted_content"])
    assert made.output[0].content[0].logprobs == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs"),
        ({"include": ["message.output_text.logprob"]}, "include[0]"),
    ],
)
async def test_logprobs__asked_for_in_another_way__400_names_it(sdk, body, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.responses.create(model=MODEL, input="hi", **body)
    assert refused.value.param == param
