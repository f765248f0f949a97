"""Thoughts that may have so many tokens: then they end, and the answer comes."""

from pathlib import Path

import anthropic
import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from test_tools import HERMES

from pdmux_actor.messages import GenerateRequest

MODEL = "demo/bytes"
ASK = [{"role": "user", "content": "Weather?"}]
OPENED = HERMES.replace("<|im_start|>assistant\n{% if", "<|im_start|>assistant\n<think>\n{% if")
END = "\n</think>\n\n"
THOUGHTS = "Hm, é. " * 40


def thinker(begins: str = "<think>"):
    """A model that thinks for as long as it may, and then says "Sunny."."""

    def says(request: GenerateRequest) -> str:
        said = bytes(request.output_token_ids).decode()
        return begins + THOUGHTS if END not in said else said.partition(END)[0] + END + "Sunny."

    return says


@pytest.fixture
async def talk(serve, tmp_path: Path):
    """`talk(units, chat_template)` is a client of a fleet of these units."""
    clients = []

    async def start(*units: FakeUnit, chat_template: str = HERMES) -> openai.AsyncOpenAI:
        served = await serve(*units)
        served.folder = write_byte_tokenizer(tmp_path / "thinker", chat_template=chat_template)
        served.show(*units)
        clients.append(openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


async def ask(sdk: openai.AsyncOpenAI, budget: int, **body):
    extra = {"thinking_token_budget": budget}
    return await sdk.chat.completions.create(**{"model": MODEL, "messages": ASK, "extra_body": extra, **body})


@pytest.mark.parametrize(("chat_template", "begins"), [(HERMES, "<think>"), (OPENED, "")])
@pytest.mark.parametrize("tokens_per_delta", [1, 3])
async def test_thoughts__are_longer_than_they_may__end_there_and_the_answer_comes(
    talk, chat_template, begins, tokens_per_delta
) -> None:
    unit = FakeUnit(says=thinker(begins), tokens_per_delta=tokens_per_delta)
    sdk = await talk(unit, chat_template=chat_template)
    reply = await ask(sdk, 30)
    chunks = [c async for c in await ask(sdk, 30, stream=True, stream_options={"include_usage": True})]

    message = reply.choices[0].message
    assert (message.content, reply.choices[0].finish_reason) == ("Sunny.", "stop")
    assert 25 - len(begins) <= len(message.reasoning.encode()) <= 33 - len(begins)
    assert THOUGHTS.startswith(message.reasoning)
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(getattr(d, "reasoning", None) or "" for d in deltas) == message.reasoning
    assert "".join(d.content or "" for d in deltas) == "Sunny."
    whole = unit.requests[1].output_token_ids
    assert bytes(whole).decode() == begins + message.reasoning + END or bytes(whole).decode().endswith(" " + END)
    assert reply.usage.completion_tokens == len(whole) + len("Sunny.")
    assert len(unit.requests) == 4


async def test_thoughts__end_in_time__nothing_is_cut(talk) -> None:
    unit = FakeUnit(says=lambda _: "<think>Hm.</think>" + "Sunny. " * 20)
    reply = await ask(await talk(unit), 30)

    assert (reply.choices[0].message.reasoning, len(unit.requests)) == ("Hm.", 1)


async def test_answer__without_thoughts__is_not_cut(talk) -> None:
    unit = FakeUnit(says=lambda _: "Sunny. " * 20)
    reply = await ask(await talk(unit), 30)

    assert (reply.choices[0].message.content, len(unit.requests)) == (("Sunny. " * 20).rstrip() + " ", 1)


async def test_thoughts__no_token_is_left_behind_them__reply_ends_there(talk) -> None:
    unit = FakeUnit(says=thinker())
    reply = await ask(await talk(unit), 30, max_tokens=35)

    choice = reply.choices[0]
    assert (choice.message.content, choice.finish_reason, len(unit.requests)) == ("", "length", 1)


async def test_unit__dies_after_the_cut__answer_goes_on_elsewhere(talk) -> None:
    fuse = [45]
    units = [FakeUnit(unit_id=f"u{i}", says=thinker(), fuse=fuse) for i in range(2)]
    reply = await ask(await talk(*units), 30)

    assert reply.choices[0].message.content == "Sunny."
    assert sum(len(unit.requests) for unit in units) == 3


async def test_choices__each_has_its_own_budget(talk) -> None:
    reply = await ask(await talk(FakeUnit(says=thinker())), 30, n=2)

    assert [choice.message.content for choice in reply.choices] == ["Sunny."] * 2


async def test_messages__budget_of_their_thinking__is_kept(talk) -> None:
    unit = FakeUnit(says=thinker())
    url = str((await talk(unit)).base_url).removesuffix("/v1/")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as sdk:
        thinking = {"type": "enabled", "budget_tokens": 30}
        message = await sdk.messages.create(model=MODEL, max_tokens=500, messages=ASK, thinking=thinking)

    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[1].text == "Sunny."
