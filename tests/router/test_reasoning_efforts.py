"""Efforts of reasoning that chat templates know, and requests that ask for others."""

from pathlib import Path

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer

MODEL = "demo/bytes"
HELLO = [{"role": "user", "content": "hello"}]
SAID = "{{ 'Effort: ' + (reasoning_effort | default('unsaid')) }}"
SWITCH = "{% if enable_thinking is false %} off{% endif %}"
GPT_OSS = (
    '{% if reasoning_effort is not defined %}{% set reasoning_effort = "medium" %}{% endif %}'
    "{{ 'Effort: ' + reasoning_effort }}{% if false %}<|channel|>{% endif %}"
)
QWEN = (
    "{% if enable_thinking is undefined or enable_thinking is true %}"
    "{% set resolved_reasoning_effort = reasoning_effort | default('xhigh') %}"
    "{% if resolved_reasoning_effort not in ('xhigh', 'medium', 'low') %}{{ raise_exception('no') }}{% endif %}"
    "{% elif reasoning_effort is defined %}{{ raise_exception('no') }}{% endif %}" + SAID + SWITCH
)
MISTRAL = (
    "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('no') }}{% endif %}" + SAID
)
HUNYUAN = (
    "{% if not reasoning_effort is defined %}{% set reasoning_effort = 'no_think' %}"
    "{% elif reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('no') }}{% endif %}" + SAID
)
GLM = (
    "{% set effort = 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' %}"
    "{{ 'Effort: ' + effort }}"
)
KIMI_K3 = (
    "{% if thinking is undefined %}{% set thinking = true %}{% endif %}"
    "{% if thinking_effort is undefined %}{% set thinking_effort = 'max' %}{% endif %}"
    "{% if thinking and thinking_effort is not none and thinking_effort not in ['low', 'medium', 'high', 'max'] %}"
    "{{ raise_exception('no') }}{% endif %}{{ 'Effort: ' + (thinking_effort if thinking else 'off') }}"
)
SOLAR = "{% if reasoning_effort in ['low', 'minimal'] %}{% endif %}" + SAID + SWITCH  # some of what it knows


@pytest.fixture
async def ask(serve, tmp_path: Path):
    """`ask(chat_template, path, body)` returns the prompt that a model of that template gets."""

    async def posted(chat_template: str, path: str, body: dict) -> str:
        served = await serve(FakeUnit())
        served.folder = write_byte_tokenizer(tmp_path / "tokenizer", chat_template=chat_template)
        served.show(*served.units)
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            answer = await http.post(path, json={"model": MODEL, "messages": HELLO, "max_tokens": 1, **body})
        assert answer.status_code == 200, answer.text
        return bytes(served.units[0].requests[-1].prompt_token_ids).decode()

    return posted


@pytest.mark.parametrize(
    ("chat_template", "asked", "told"),
    [
        (GPT_OSS, None, "medium"),
        *((GPT_OSS, low, "low") for low in ("none", "minimal", "low")),
        (GPT_OSS, "medium", "medium"),
        *((GPT_OSS, high, "high") for high in ("high", "xhigh", "max")),
        (QWEN, "none", "unsaid off"),
        *((QWEN, asked, told) for asked, told in [("low", "low"), ("high", "xhigh"), ("max", "xhigh")]),
        *((MISTRAL, asked, told) for asked, told in [("none", "none"), ("low", "high"), ("max", "high")]),
        *((HUNYUAN, asked, told) for asked, told in [("none", "no_think"), ("medium", "high"), ("minimal", "low")]),
        *((KIMI_K3, asked, told) for asked, told in [("none", "off"), ("minimal", "low"), ("xhigh", "max")]),
        *((GLM, asked, told) for asked, told in [("low", "high"), ("high", "high"), ("max", "max")]),
        *((SOLAR, asked, told) for asked, told in [("none", "none off"), ("minimal", "minimal"), ("high", "high")]),
    ],
)
async def test_effort__template_knows_others__is_told_the_nearest(chat_template, asked, told, ask) -> None:
    prompt = await ask(chat_template, "/v1/chat/completions", {"reasoning_effort": asked})

    assert prompt == f"Effort: {told}"


@pytest.mark.parametrize(("chat_template", "told"), [(GPT_OSS, "low"), (QWEN, "unsaid off"), (HUNYUAN, "no_think")])
async def test_messages__without_thinking__template_is_told_what_it_knows(chat_template, told, ask) -> None:
    assert await ask(chat_template, "/v1/messages", {}) == f"Effort: {told}"


async def test_effort__as_an_argument_of_the_template__is_told_as_it_is(ask) -> None:
    body = {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}}

    assert await ask(GPT_OSS, "/v1/chat/completions", body) == "Effort: max"
