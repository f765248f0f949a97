"""`best_of`: more completions than are shown, of which the most probable are."""

import json

import httpx
import pytest
from fake_unit import FakeUnit

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import TokenLogprob
from router.openai.completion_reply import best_choices
from router.openai.reply import Choice

MODEL = "demo/bytes"


def choice(*logprobs: float) -> Choice:
    return Choice(logprobs=[TokenLogprob("x", p, [120], []) for p in logprobs], finish=FinishReason.LENGTH)


def test_best_choices__of_two_prompts__are_the_most_probable_per_token_the_best_first() -> None:
    first = [choice(-1.0, -1.0), choice(-0.5), choice(-0.1, -0.3, -0.2)]
    second = [choice(-3.0), choice(), choice(-2.0)]
    assert best_choices(first + second, generated=3, shown=2) == [2, 1, 5, 3]


def test_best_choices__all_shown__keep_their_order() -> None:
    assert best_choices([choice(-2.0), choice(-1.0)], generated=2, shown=2) == [0, 1]


async def complete(serve, unit: FakeUnit, **extra) -> httpx.Response:
    served = await serve(unit)
    body = {"model": MODEL, "prompt": ["ab", "cd"], "max_tokens": 4, "seed": 3, **extra}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        return await client.post("/v1/completions", json=body)


async def test_best_of__more_than_n__generates_all_and_shows_n(serve) -> None:
    unit = FakeUnit(says=lambda request: "abcdefgh"[request.sampling.seed % 5 :])
    reply = (await complete(serve, unit, best_of=4, n=2, echo=True)).json()

    assert len(unit.requests) == 8
    assert {request.sampling.logprobs for request in unit.requests} == {0}
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3]
    assert [c["text"][:2] for c in reply["choices"]] == ["ab", "ab", "cd", "cd"]
    assert {json.dumps(c["logprobs"]) for c in reply["choices"]} == {"null"}
    assert reply["usage"]["completion_tokens"] == 8 * 4


async def test_best_of__as_many_as_n__ranks_nothing(serve) -> None:
    unit = FakeUnit()
    assert (await complete(serve, unit, best_of=2, n=2, stream=True)).status_code == 200
    assert {request.sampling.logprobs for request in unit.requests} == {None}


@pytest.mark.parametrize("extra", [{"best_of": 2, "n": 3}, {"best_of": 17}, {"best_of": 2, "stream": True}])
async def test_best_of__that_cannot_be__is_refused(serve, extra) -> None:
    reply = await complete(serve, unit := FakeUnit(), **extra)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "best_of")
    assert not unit.requests
