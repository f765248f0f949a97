"""What the end-to-end tests ask of a fleet."""

from collections.abc import Callable, Iterator

import openai

from deploy.local.demo_fleet import DemoTrace
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES
from traces.outcome import Ending
from traces.replay import replay

MODELS = tuple(DEMO_SHAPES)
PROMPT = "The quick brown fox jumps over the lazy dog."


def client_of(url: str) -> openai.OpenAI:
    # No retries: an error must show.
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


def chat(client: openai.OpenAI, model: str, *, max_tokens: int) -> str:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    return answer.choices[0].message.content or ""


def streamed_chat(
    client: openai.OpenAI, model: str, *, max_tokens: int, on_chunk: Callable[[int], None] = lambda n: None
) -> str:
    """`on_chunk` is told how many chunks with text have come."""
    texts: list[str] = []
    finish = None
    for text, reason in _chunks(client, model, max_tokens):
        finish = reason or finish
        if text:
            texts.append(text)
            on_chunk(len(texts))
    assert finish == "length"
    return "".join(texts)


def _chunks(client: openai.OpenAI, model: str, max_tokens: int) -> Iterator[tuple[str, str | None]]:
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            yield choice.delta.content or "", choice.finish_reason


async def endings(workload: DemoTrace, url: str) -> dict[Ending, int]:
    outcomes = await replay(
        workload.trace.records, url=url, timeout_s=240, block_tokens=workload.trace.block_tokens, seed=1
    )
    counts = dict.fromkeys(Ending, 0)
    for outcome in outcomes:
        counts[outcome.ending] += 1
    return counts
