"""What the end-to-end tests ask of a fleet."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import httpx
import openai

from deploy.local.demo_fleet import DemoTrace
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES
from traces.outcome import Ending
from traces.replay import replay

MODELS = tuple(DEMO_SHAPES)
Answer = TypeVar("Answer")
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


def streamed_completion(url: str, model: str, prompt: Sequence[int], max_tokens: int) -> tuple[str, Counter[str]]:
    """Text, and how often it ended how: an error is an end, too."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    text, ends = "", Counter[str]()
    with httpx.stream("POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=240.0) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            ends["error"] += "error" in event
            for choice in event.get("choices", ()):
                text += choice["text"]
                ends[choice["finish_reason"]] += choice["finish_reason"] is not None
    return text, +ends


@contextmanager
def keeps_asking(ask: Callable[[int], Answer], prompts: int, clients: int) -> Iterator[list[tuple[int, Answer]]]:
    """Until it is left, clients ask for the prompts by turns, by number. Then the list has each with its answer."""
    over, answers = threading.Event(), list[tuple[int, Answer]]()

    def ask_on(turn: int) -> list[tuple[int, Answer]]:
        found = []
        while not over.is_set():
            found.append((turn % prompts, ask(turn % prompts)))
            turn += 1
        return found

    with ThreadPoolExecutor(clients) as threads:
        asking = [threads.submit(ask_on, number) for number in range(clients)]
        try:
            yield answers
        finally:
            over.set()
        answers += [answer for asked in asking for answer in asked.result()]


async def endings(workload: DemoTrace, url: str) -> dict[Ending, int]:
    outcomes = await replay(
        workload.trace.records, url=url, timeout_s=240, block_tokens=workload.trace.block_tokens, seed=1
    )
    counts = dict.fromkeys(Ending, 0)
    for outcome in outcomes:
        counts[outcome.ending] += 1
    return counts
