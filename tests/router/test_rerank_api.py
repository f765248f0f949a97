"""/v1/rerank: what clients see, what units are asked, what is refused, and what of a checkpoint says how it judges."""

import json
import math
import struct
from pathlib import Path

import httpx
import pytest
from fake_unit import FakeUnit, fake_logit, write_byte_tokenizer
from reranker_folder import declare_reranker

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.http.batch_lines import line_endpoints
from router.limits import GatewayLimits
from router.openai.rerank import MAX_DOCUMENTS
from router.request_terms import ANYBODY
from router.text.checkpoint_modules import RerankerHead, reranker_head

MODEL = "demo/bytes"
YES, NO = ord("y"), ord("n")
IDENTITY = "torch.nn.modules.linear.Identity"
DOCUMENTS = ["Paris", "Grüße", "b", "Paris", "something longer"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return declare_reranker(write_byte_tokenizer(tmp_path / "reranker"), true_token=YES, false_token=NO)


@pytest.fixture
async def ranker(serve, folder):
    async def start(*units: FakeUnit, limits: GatewayLimits | None = None):
        served = await serve(*units, limits=limits)
        served.folder = folder
        served.show(*units)
        return served

    return start


async def post(served, path="/v1/rerank", headers=None, **body):
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        body = {"model": MODEL, "query": "capital?", "documents": DOCUMENTS, **body}
        return await client.post(path, json=body, headers=headers)


def prompt(document: str, query: str = "capital?", instruction: str = "Judge", end: str = "") -> tuple[int, ...]:
    return tuple(f"{instruction}|{query}|{document}|{end}".encode())


def probability(tokens: tuple[int, ...]) -> float:
    return 1 / (1 + math.exp(fake_logit(tokens, NO) - fake_logit(tokens, YES)))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents__are_ranked_by_how_probable_yes_is_of_yes_and_no(ranker, path) -> None:
    served = await ranker(unit := FakeUnit())
    reply = await post(served, path)

    assert reply.status_code == 200
    told = reply.json()
    scores = {place: probability(prompt(text)) for place, text in enumerate(DOCUMENTS)}
    ranked = sorted(scores, key=lambda place: (-scores[place], place))
    assert [result["index"] for result in told["results"]] == ranked
    assert ranked.index(3) == ranked.index(0) + 1, "of equal ones the earlier comes first"
    for result in told["results"]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    tokens = sum(len(prompt(text)) for text in DOCUMENTS)
    assert (told["model"], told["usage"]) == (MODEL, {"prompt_tokens": tokens, "total_tokens": tokens})
    assert told["id"].startswith("rerank-")
    assert sorted(r.prompt_token_ids for r in unit.requests) == sorted(prompt(text) for text in DOCUMENTS)
    assert {(r.embeds, r.scored_tokens, r.sampling.max_tokens) for r in unit.requests} == {(True, (YES, NO), 1)}
    assert served.gateway.metrics.requests.labels(MODEL, "/v1/rerank", "200")._value.get() == 1


@pytest.mark.parametrize(
    ("asked", "places", "keys"),
    [
        ({"top_n": 2}, 2, {"index", "relevance_score", "document"}),
        ({"top_n": 99}, 5, {"index", "relevance_score", "document"}),
        ({"top_n": 0, "return_documents": False, "user": "u"}, 5, {"index", "relevance_score"}),
        ({"documents": [{"text": text} for text in DOCUMENTS]}, 5, {"index", "relevance_score", "document"}),
    ],
)
async def test_reply__has_the_best_of_them_as_they_were_asked_for(ranker, asked, places, keys) -> None:
    served = await ranker(FakeUnit())
    every = [(r["index"], r["relevance_score"]) for r in (await post(served)).json()["results"]]
    results = (await post(served, **asked)).json()["results"]
    assert [(r["index"], r["relevance_score"]) for r in results] == every[:places]
    assert all(set(result) == keys for result in results)


async def test_instruction__takes_the_place_of_the_checkpoints_own(ranker, folder) -> None:
    whole = {"model_type": "CrossEncoder", "prompts": {"web": "Search"}, "default_prompt_name": "web"}
    declare_reranker(folder, true_token=YES, false_token=NO, whole=whole, add_generation_prompt=True)
    served = await ranker(unit := FakeUnit())
    await post(served, documents=["d"])
    await post(served, documents=["d"], instruction="Find code")
    await post(served, documents=["d"], instruction="")
    asked = [r.prompt_token_ids for r in unit.requests]
    assert asked == [prompt("d", instruction=text, end="?") for text in ("Search", "Find code", "Judge")]


@pytest.mark.parametrize(
    ("document", "most", "judged"),
    [("abcdef", 4, "abcd"), ("abcd", 4, "abcd"), ("abcü", 4, "abc"), ("ab" * 4000, 10, "ab" * 5)],
)
async def test_document__longer_than_asked_for__is_judged_by_its_beginning_and_told_whole(
    ranker, document, most, judged
) -> None:
    served = await ranker(unit := FakeUnit())
    reply = await post(served, documents=[document], max_tokens_per_doc=most)
    assert [r.prompt_token_ids for r in unit.requests] == [prompt(judged)]
    assert reply.json()["results"][0]["document"] == {"text": document}


async def test_score__beyond_what_exponentials_hold__is_certain(ranker) -> None:
    logits = {"a": (-1e4, 1e4), "b": (1e4, -1e4)}
    served = await ranker(FakeUnit(fail=lambda request: _told(request, logits)))
    results = (await post(served, documents=["a", "b"])).json()["results"]
    assert [(r["index"], r["relevance_score"]) for r in results] == [(1, 1.0), (0, 0.0)]


@pytest.mark.parametrize("logits", [(math.nan, 1.0), (1.0, math.nan), (math.inf, math.inf), (1.0, -math.inf)])
@pytest.mark.parametrize("activation", [{}, {"activation_fn": IDENTITY}])
async def test_scores__of_logits_that_are_not_finite__are_an_error_not_a_rank(
    ranker, folder, logits, activation
) -> None:
    declare_reranker(folder, true_token=YES, false_token=NO, whole=activation)
    told = {"a": (0.5, 0.1), "b": logits}
    reply = await post(await ranker(FakeUnit(fail=lambda request: _told(request, told))), documents=["a", "b"])
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "generation_failed")
    assert "not finite" in reply.json()["error"]["message"]


def _told(request, logits) -> Delta:
    (document,) = (name for name in logits if request.prompt_token_ids == prompt(name))
    told = struct.pack("<2f", *logits[document])
    return Delta(0, 0, "", [120], finish=FinishReason.LENGTH, embedding=told)


async def test_score__of_one_token_and_no_activation__is_its_logit(ranker, folder) -> None:
    declare_reranker(folder, true_token=YES, false_token=None, whole={"activation_fn": IDENTITY})
    served = await ranker(unit := FakeUnit())
    (result,) = (await post(served, documents=["d"])).json()["results"]
    assert result["relevance_score"] == pytest.approx(fake_logit(prompt("d"), YES), abs=1e-6)
    assert unit.requests[0].scored_tokens == (YES,)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"query": None}, 400, "query"),
        ({"query": ""}, 400, "query"),
        ({"query": ["a"]}, 400, "query"),
        ({"documents": None}, 400, "documents"),
        ({"documents": "a"}, 400, "documents"),
        ({"documents": []}, 400, "documents"),
        ({"documents": ["a", ""]}, 400, "documents[1]"),
        ({"documents": ["a", {"text": ""}]}, 400, "documents[1]"),
        ({"documents": ["a", 1]}, 400, "documents[1]"),
        ({"documents": ["a", {"title": "t"}]}, 400, "documents[1].title"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, 400, "documents"),
        ({"documents": ["a" * 4096]}, 400, "documents"),
        ({"documents": ["a" * 4000] * 263}, 400, "documents"),
        ({"top_n": -1}, 400, "top_n"),
        ({"top_n": 1.5}, 400, "top_n"),
        ({"return_documents": "no"}, 400, "return_documents"),
        ({"topn": 1}, 400, "topn"),
        ({"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc"),
        ({"model": "none"}, 404, "model"),
    ],
)
async def test_bodies__that_are_wrong__name_the_field(ranker, body, status, param) -> None:
    reply = await post(await ranker(FakeUnit()), **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert len(reply.json()["error"]["message"]) < 400


async def test_model__that_only_generates__is_told_what_its_checkpoint_lacks(serve) -> None:
    served = await serve(unit := FakeUnit())
    reply = await post(served)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "model", "not_a_reranker")
    assert "LogitScore" in error["message"]
    assert not unit.requests


async def test_template__that_refuses__is_named_as_documents(ranker, folder) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('not these') }}")
    reply = await post(await ranker(FakeUnit()))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "documents")
    assert "not these" in reply.json()["error"]["message"]


@pytest.mark.parametrize("told", [b"", b"\0" * 32])
async def test_unit__of_a_version_without_scores__is_an_error_that_says_so(ranker, told) -> None:
    old = Delta(0, 0, "x", [120], finish=FinishReason.LENGTH, embedding=told)
    reply = await post(await ranker(FakeUnit(fail=lambda request: old)))
    assert reply.status_code == 500
    assert "version" in reply.json()["error"]["message"]


async def test_unit__dies__documents_are_asked_again(ranker) -> None:
    units = [FakeUnit(unit_id=name, fuse=[0]) for name in ("unit-a", "unit-b")]
    units[1].fuse = []
    served = await ranker(*units)
    results = [(await post(served, documents=["d"])).json()["results"] for _ in range(4)]
    assert all(result[0]["relevance_score"] == pytest.approx(probability(prompt("d"))) for result in results)


async def test_documents__many__are_few_at_a_time_and_all_ranked(ranker) -> None:
    served = await ranker(unit := FakeUnit(), limits=GatewayLimits(max_choices=4, max_queued=4))
    reply = await post(served, documents=[f"text {i}" for i in range(100)], return_documents=False)
    scores = [result["relevance_score"] for result in reply.json()["results"]]
    assert len(unit.requests) == len(scores) == 100
    assert scores == sorted(scores, reverse=True)


async def test_line_of_a_batch__is_ranked_as_a_request_is(ranker) -> None:
    served = await ranker(FakeUnit())
    body = json.dumps({"model": MODEL, "query": "q", "documents": ["a", "b"], "top_n": 1}).encode()
    told = json.loads(await line_endpoints(served.gateway)["/v1/rerank"](body, ANYBODY, ""))
    best = max(range(2), key=lambda place: probability(prompt("ab"[place], "q")))
    assert [result["index"] for result in told["results"]] == [best]


async def test_keys__are_asked_for_and_charged_for_the_prompts(ranker) -> None:
    served, key = await ranker(FakeUnit()), make_key()
    entry = KeyEntry(key_id=key.key_id, name="k", hash=key.hash, models=frozenset({MODEL}), requests_per_minute=1)
    served.gateway.access.set_keys(KeyRing([entry]))
    spent: list[int] = []
    served.gateway.access._rates.spend = lambda key_id, tokens, now_s: spent.append(tokens)
    bears = {"authorization": f"Bearer {key.secret}"}

    assert (await post(served)).status_code == 401
    assert (await post(served, headers=bears, documents=["a", "bc"])).status_code == 200
    assert (await post(served, headers=bears)).status_code == 429
    assert sorted(spent) == [len(prompt("a")), len(prompt("bc"))]


def test_checkpoint__that_says_nothing_of_scores__is_no_reranker(tmp_path: Path) -> None:
    assert "LogitScore" in reranker_head(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]')
    assert "LogitScore" in reranker_head(tmp_path)


def test_checkpoint__of_a_reranker__says_tokens_activation_and_prompt(folder: Path) -> None:
    plain = RerankerHead(true_token=YES, false_token=NO, is_probability=True, adds_generation_prompt=False)
    assert reranker_head(folder) == plain
    whole = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "prompts": {}, "default_prompt_name": None}
    declare_reranker(folder, true_token=YES, false_token=NO, whole=whole)
    assert reranker_head(folder) == plain


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("1_LogitScore/config.json", "{", "1_LogitScore/config.json"),
        ("1_LogitScore/config.json", "{}", "true_token_id"),
        ("1_LogitScore/config.json", '{"true_token_id": "yes"}', "int"),
        ("config_sentence_transformers.json", '{"activation_fn": "torch.nn.Softplus"}', "torch.nn.Softplus"),
        ("config_sentence_transformers.json", '{"prompts": []}', "config_sentence_transformers.json"),
        ("modules.json", "{}", "modules.json"),
    ],
)
async def test_checkpoint__that_contradicts_itself__is_told_where_and_still_generates(
    ranker, folder, file, text, says
) -> None:
    (folder / file).write_text(text)
    served = await ranker(FakeUnit())
    reply = await post(served)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_a_reranker")
    assert says in reply.json()["error"]["message"]
    async with httpx.AsyncClient(base_url=served.url) as client:
        said = await client.post("/v1/completions", json={"model": MODEL, "prompt": "hi", "max_tokens": 2})
    assert said.status_code == 200
