"""/v1/embeddings: what clients see, what units are asked, and what is refused."""

import base64
import json
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from fake_unit import FakeUnit, fake_embedding, write_byte_tokenizer
from tokenizers import Tokenizer, processors

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.limits import GatewayLimits
from router.openai.body import SMALL_BODY_BYTES
from router.openai.embeddings import MAX_INPUTS

MODEL = "demo/bytes"


def sdk(served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


async def post(served, headers=None, **body):
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        return await client.post("/v1/embeddings", json={"model": MODEL, **body}, headers=headers)


def expected(text: str, dimensions: int = 8) -> np.ndarray:
    vector = np.frombuffer(fake_embedding(tuple(text.encode())), dtype="<f4")[:dimensions].astype(np.float64)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_sdk__texts__are_unit_vectors_in_their_order(serve, encoding: str | None) -> None:
    served = await serve(unit := FakeUnit())
    texts = ["Grüße", "b", "something longer", "b"]
    extra = {} if encoding is None else {"encoding_format": encoding}

    reply = await sdk(served).embeddings.create(model=MODEL, input=texts, **extra)

    assert [(e.object, e.index) for e in reply.data] == [("embedding", i) for i in range(4)]
    for text, entry in zip(texts, reply.data, strict=True):
        told = entry.embedding
        if encoding == "base64":  # the SDK decodes it only where it has asked for it by itself
            told = np.frombuffer(base64.b64decode(told), dtype="<f4")
        assert np.allclose(told, expected(text), atol=1e-6)
    tokens = sum(len(text.encode()) for text in texts)
    assert (reply.object, reply.model) == ("list", MODEL)
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (tokens, tokens)
    assert {(r.embeds, r.sampling.max_tokens) for r in unit.requests} == {(True, 1)}


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [b"hi"]),
        ([104, 105], [b"hi"]),
        ([[104, 105], [33]], [b"hi", b"!"]),
        (["x" * SMALL_BODY_BYTES, "y"], [b"x" * SMALL_BODY_BYTES, b"y"]),
    ],
)
async def test_input__of_every_kind__is_its_tokens(serve, given, prompts) -> None:
    served = await serve(unit := FakeUnit(max_model_len=1 << 17))
    reply = await post(served, input=given)
    assert reply.status_code == 200
    assert sorted(bytes(r.prompt_token_ids) for r in unit.requests) == sorted(prompts)
    assert reply.json()["usage"]["prompt_tokens"] == sum(map(len, prompts))


@pytest.mark.parametrize(
    ("given", "extra", "prompt"),
    [
        ("abcdef", {"truncate_prompt_tokens": 4}, b"abcd"),
        ("abcdef", {"truncate_prompt_tokens": 4, "truncation_side": "left"}, b"cdef"),
        ("abc", {"truncate_prompt_tokens": 4}, b"abc"),
        ([97, 98, 99], {"truncate_prompt_tokens": 2, "truncation_side": "right"}, b"ab"),
        ("a" * 99, {"truncate_prompt_tokens": -1}, b"a" * 31),
        ([97] * 99, {"truncate_prompt_tokens": -1}, b"a" * 31),
    ],
)
async def test_input__is_cut_where_that_is_asked_for(serve, given, extra, prompt) -> None:
    served = await serve(unit := FakeUnit(max_model_len=32))
    reply = await post(served, input=given, **extra)
    assert reply.status_code == 200, reply.text
    assert [bytes(r.prompt_token_ids) for r in unit.requests] == [prompt]


async def test_input__is_cut__what_the_tokenizer_puts_around_it_stays(serve, tmp_path) -> None:
    served = await serve(unit := FakeUnit())
    served.folder = write_byte_tokenizer(tmp_path / "ending")
    file = served.folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    template = processors.TemplateProcessing(single="a $A <eos>", special_tokens=[("a", 97), ("<eos>", 256)])
    tokenizer.post_processor = processors.Sequence([template])
    tokenizer.save(str(file))
    served.show(unit)
    for side in ("right", "left"):
        await post(served, input="bcdefg", truncate_prompt_tokens=4, truncation_side=side)
    assert [r.prompt_token_ids for r in unit.requests] == [(97, 98, 99, 256), (97, 102, 103, 256)]


async def test_dimensions__are_the_first_ones_normalised_again(serve) -> None:
    reply = await sdk(await serve(FakeUnit())).embeddings.create(model=MODEL, input="hi", dimensions=3)
    assert np.allclose(reply.data[0].embedding, expected("hi", 3), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": 7}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input[1]"),
        ({"input": [[1], "a"]}, 400, "input[1]"),
        ({"input": [[1], []]}, 400, "input"),
        ({"input": [-1]}, 400, "input"),
        ({"input": [257]}, 400, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, 400, "input"),
        ({"input": "a" * 4096}, 400, "input"),
        ({"input": [[97] * 4000] * 263}, 400, "input"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": 9}, 400, "dimensions"),
        ({"input": "a", "dimension": 8}, 400, "dimension"),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
        ({"input": "a", "model": "none"}, 404, "model"),
    ],
)
async def test_bodies__that_are_wrong__name_the_field(serve, body, status, param) -> None:
    reply = await post(await serve(FakeUnit()), **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert len(reply.json()["error"]["message"]) < 400


async def test_numbers__more_than_a_reply_may_have__are_refused_at_the_first_answer(serve, monkeypatch) -> None:
    monkeypatch.setattr("router.openai.embeddings.MAX_NUMBERS", 8 * 30)
    served = await serve(unit := FakeUnit(), limits=GatewayLimits(max_choices=2))
    texts = [f"text {i}" for i in range(31)]

    assert (await post(served, input=texts[:30])).status_code == 200
    assert (await post(served, input=texts, dimensions=7)).status_code == 200
    asked = len(unit.requests)
    refused = await post(served, input=texts)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert len(unit.requests) < asked + 31


async def test_inputs__most_of_a_request__are_few_at_a_time_and_all_answered(serve) -> None:
    served = await serve(unit := FakeUnit(), limits=GatewayLimits(max_choices=4, max_queued=4))
    most = 0
    say = unit._say

    async def watched(*arguments) -> None:
        nonlocal most
        most = max(most, sum(m.in_flight.labels(MODEL)._value.get() for m in [served.gateway.metrics]))
        await say(*arguments)

    unit._say = watched
    reply = await post(served, input=[f"text {i}" for i in range(100)])

    assert reply.status_code == 200
    assert np.allclose(reply.json()["data"][57]["embedding"], expected("text 57"), atol=1e-6)
    assert 1 <= most <= 4


@pytest.mark.parametrize("fuse", [[0], [0, 0]])
async def test_unit__dies__inputs_are_asked_again_unless_they_kill_another(serve, fuse) -> None:
    units = [FakeUnit(unit_id=name, fuse=fuse) for name in ("unit-a", "unit-b")]
    deaths = len(fuse)
    reply = await post(await serve(*units), input="hi")

    assert sum(len(unit.requests) for unit in units) == 2
    if deaths == 1:
        assert np.allclose(reply.json()["data"][0]["embedding"], expected("hi"), atol=1e-6)
    else:
        assert reply.json()["error"]["code"] == "request_killed_units"


async def test_unit__cannot__is_the_clients_fault(serve) -> None:
    refusal = Delta(0, 0, "", [], finish=FinishReason.ERROR, error="runs SGLang", param="model")
    reply = await post(await serve(FakeUnit(fail=lambda request: refusal)), input="hi")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert "runs SGLang" in reply.json()["error"]["message"]


async def test_unit__of_a_version_without_them__is_an_error_that_says_so(serve) -> None:
    silent = Delta(0, 0, "x", [120], finish=FinishReason.LENGTH)
    reply = await post(await serve(FakeUnit(fail=lambda request: silent)), input="hi")
    assert reply.status_code == 500
    assert "version" in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
async def test_numbers__that_are_not_finite__are_an_error_that_says_so(serve, encoding, number) -> None:
    told = np.array([1.0, number], dtype="<f4").tobytes()
    broken = Delta(0, 0, "", [120], finish=FinishReason.LENGTH, embedding=told)
    reply = await post(await serve(FakeUnit(fail=lambda request: broken)), input="hi", encoding_format=encoding)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "generation_failed")
    assert "not finite" in reply.json()["error"]["message"]


def declared(folder: Path, *modules: str, pooling: dict | None = None) -> None:
    """Writes what sentence-transformers writes of a model."""
    kinds = [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(kinds))
    if pooling is not None:
        place = folder / f"{modules.index('Pooling')}_Pooling"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("modules", "pooling", "says"),
    [
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True},
            "mean_tokens",
        ),
        (("Transformer", "Pooling", "Normalize"), {"word_embedding_dimension": 8}, "mean"),
        (("Transformer", "Pooling"), {"pooling_mode": ["lasttoken", "cls"]}, "lasttoken and cls"),
        (("Transformer", "Pooling", "Dense"), {"pooling_mode": "lasttoken"}, "Dense"),
        (("Transformer", "Pooling", "Normalize"), {"pooling_mode_lasttoken": True}, ""),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken", "embedding_dimension": 8}, ""),
        (("Transformer", "Pooling"), None, ""),
    ],
)
async def test_checkpoint__whose_vectors_are_made_otherwise__is_refused_not_served_wrong(
    serve, tmp_path, modules, pooling, says
) -> None:
    served = await serve(unit := FakeUnit())
    served.folder = write_byte_tokenizer(tmp_path / "embedder")
    declared(served.folder, *modules, pooling=pooling)
    served.show(unit)
    reply = await post(served, input="hi")
    if not says:
        assert reply.status_code == 200
        return
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "model", "embeddings_not_served")
    assert says in error["message"]
    assert not unit.requests


async def test_keys__are_asked_for_and_charged_for_the_prompt_alone(serve) -> None:
    served, key = await serve(FakeUnit()), make_key()
    entry = KeyEntry(key_id=key.key_id, name="k", hash=key.hash, models=frozenset({MODEL}), requests_per_minute=1)
    served.gateway.access.set_keys(KeyRing([entry]))
    spent: list[int] = []
    served.gateway.access._rates.spend = lambda key_id, tokens, now_s: spent.append(tokens)

    assert (await post(served, input="hello")).status_code == 401
    reply = await post(served, {"authorization": f"Bearer {key.secret}"}, input=["hello", "you"])
    again = await post(served, {"authorization": f"Bearer {key.secret}"}, input="hello")

    assert (reply.status_code, again.status_code) == (200, 429)
    assert sorted(spent) == [3, 5]
