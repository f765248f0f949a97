"""/v1/score: how well pairs of texts fit, in vLLM's shapes."""

import json

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from reranker_folder import declare_reranker
from test_embeddings_api import declared, expected
from test_rerank_api import MODEL, NO, YES, probability, prompt

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.http.batch_lines import line_endpoints
from router.openai.rerank import MAX_DOCUMENTS
from router.request_terms import Caller


@pytest.fixture
async def served(serve, tmp_path):
    served = await serve(FakeUnit())
    served.folder = declare_reranker(write_byte_tokenizer(tmp_path / "reranker"), true_token=YES, false_token=NO)
    served.show(*served.units)
    return served


async def score(served, path: str = "/v1/score", **body) -> httpx.Response:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        return await client.post(path, json={"model": MODEL, **body})


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("text_1", "text_2", "pairs"),
    [
        ("q", "d", [("q", "d")]),
        ("q", ["d", "e", "ü"], [("q", "d"), ("q", "e"), ("q", "ü")]),
        (["q"], ["d", "e"], [("q", "d"), ("q", "e")]),
        (["q", "r"], ["d", "e"], [("q", "d"), ("r", "e")]),
    ],
)
async def test_pairs__are_scored_in_their_order_as_reranking_scores_them(served, path, text_1, text_2, pairs) -> None:
    reply = await score(served, path, text_1=text_1, text_2=text_2)

    assert reply.status_code == 200
    told = reply.json()
    prompts = [prompt(document, query) for query, document in pairs]
    assert [(one["index"], one["object"]) for one in told["data"]] == [(n, "score") for n in range(len(pairs))]
    assert [one["score"] for one in told["data"]] == pytest.approx([probability(p) for p in prompts], abs=1e-6)
    tokens = sum(map(len, prompts))
    assert (told["object"], told["model"]) == ("list", MODEL)
    assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert sorted(r.prompt_token_ids for r in served.units[0].requests) == sorted(prompts)
    assert served.gateway.metrics.requests.labels(MODEL, "/v1/score", "200")._value.get() == 1


@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "documents")]
)
async def test_names__that_vllm_has_for_the_same__are_known(served, first, second) -> None:
    reply = await score(served, **{first: "q", second: ["d", "e"]})

    assert reply.status_code == 200
    assert [one["score"] for one in reply.json()["data"]] == pytest.approx(
        [probability(prompt(document, "q")) for document in "de"], abs=1e-6
    )


async def test_line_of_a_batch__is_answered(served) -> None:
    ask = line_endpoints(served.gateway)["/v1/score"]
    body = json.dumps({"model": MODEL, "text_1": "q", "text_2": "d"}).encode()
    told = json.loads(await ask(body, Caller(tenant="", request_id="r"), ""))

    assert [one["score"] for one in told["data"]] == pytest.approx([probability(prompt("d", "q"))], abs=1e-6)


@pytest.fixture
async def embedder(serve, tmp_path):
    served = await serve(FakeUnit())
    served.folder = write_byte_tokenizer(tmp_path / "embedder")
    declared(served.folder, "Transformer", "Pooling", "Normalize", pooling={"pooling_mode_lasttoken": True})
    served.show(*served.units)
    return served


async def test_embedding_model__scores_are_cosines_and_each_text_is_embedded_once(embedder) -> None:
    reply = await score(embedder, text_1="q", text_2=["d", "e", "q", "d"])

    assert reply.status_code == 200
    cosines = [expected("q") @ expected(document) for document in "deqd"]
    assert [one["score"] for one in reply.json()["data"]] == pytest.approx(cosines, abs=1e-6)
    assert sorted(bytes(r.prompt_token_ids) for r in embedder.units[0].requests) == [b"d", b"e", b"q"]
    assert all(r.embeds and not r.scored_tokens for r in embedder.units[0].requests)
    assert reply.json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_embedding_model__refuses_an_instruction(embedder) -> None:
    reply = await score(embedder, text_1="q", text_2="d", instruction="Find code")

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "instruction")


async def test_embedding_model__vectors_that_are_not_finite__are_an_error(embedder) -> None:
    told = bytes.fromhex("0000c07f") * 8
    embedder.units[0].fail = lambda request: Delta(0, 0, "", [1], finish=FinishReason.LENGTH, embedding=told)
    reply = await score(embedder, text_1="q", text_2="d")

    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "generation_failed")


async def test_instruction__takes_the_place_of_the_checkpoints_own(served) -> None:
    await score(served, text_1="q", text_2="d", instruction="Find code")

    assert [r.prompt_token_ids for r in served.units[0].requests] == [prompt("d", "q", "Find code")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "q"}, "text_2"),
        ({"text_1": ["q", "r"], "text_2": ["d", "e", "f"]}, "text_1"),
        ({"text_1": ["q", "r"], "text_2": "d"}, "text_1"),
        ({"text_1": "q", "text_2": []}, "text_2"),
        ({"text_1": "q", "text_2": ["d", ""]}, "text_2[1]"),
        ({"text_1": "q", "text_2": ["d"] * (MAX_DOCUMENTS + 1)}, "text_2"),
        ({"queries": "q"}, "text_2"),
        ({"queries": ["q", "r"], "items": ["d", "e", "f"]}, "queries"),
        ({"text_1": "q", "text_2": "d", "documents": "d"}, "documents"),
        ({"text_1": "q", "data_2": "d" * 100_000}, "data_2"),
        ({"text_1": "q", "text_2": "d", "truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
        ({"text_1": "q" * 100_000, "text_2": "d"}, "text_2"),
    ],
)
async def test_refusal__names_the_field(served, body, param) -> None:
    reply = await score(served, **body)

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_model__no_reranker__says_so(serve, tmp_path) -> None:
    served = await serve(FakeUnit())
    served.folder = write_byte_tokenizer(tmp_path / "bytes")
    served.show(*served.units)
    reply = await score(served, text_1="q", text_2="d")

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_a_reranker")
