"""Documents that an engine's process ranks for an HTTP client: by transformers' own logits."""

import math
import os
from pathlib import Path

import httpx
import pytest
import torch
from real_unit import MODEL, real_fleet
from reranker_folder import declare_reranker
from transformers import AutoModelForCausalLM, AutoTokenizer

from pdmux_actor.serving.commands import EngineSettings

QUERY, DOCUMENTS = "capital of France", ["Paris is the capital of France.", "b", "long " * 60]
YES, NO = 130, 77


def reranker_of(checkpoint: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in checkpoint.iterdir():
        os.link(file, folder / file.name)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return declare_reranker(folder, true_token=YES, false_token=NO)


async def ranked(folder: Path, kind: str, **settings) -> dict[int, float]:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
    settings = EngineSettings(kind=kind, kv_pool_bytes=256 << 20, num_cores=2, **settings)
    async with real_fleet(folder, settings) as url, httpx.AsyncClient(base_url=url, timeout=250) as client:
        replies = [(await client.post("/v1/rerank", json=body)).json() for _ in range(2)]
    first, again = ({r["index"]: r["relevance_score"] for r in reply["results"]} for reply in replies)
    assert list(first) == list(again) == sorted(first, key=lambda place: (-first[place], place))
    assert again == pytest.approx(first, abs=1e-5), "cached prefixes change nothing"
    return first


async def test_documents__of_a_real_engine__have_the_probability_that_transformers_gives(
    demo_checkpoints, tmp_path
) -> None:
    folder = reranker_of(demo_checkpoints["demo-llama"], tmp_path / "reranker")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    scores = await ranked(folder, "torch_cpu", dtype="float32")

    for place, document in enumerate(DOCUMENTS):
        messages = [{"role": "query", "content": QUERY}, {"role": "document", "content": document}]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True).input_ids
        with torch.inference_mode():
            logits = network(torch.tensor([ids])).logits[0, -1]
        wanted = 1 / (1 + math.exp(float(logits[NO] - logits[YES])))
        assert scores[place] == pytest.approx(wanted, abs=1e-4)


async def test_documents__of_a_simulated_unit__are_ranked_by_made_up_scores(demo_checkpoints, tmp_path) -> None:
    folder = reranker_of(demo_checkpoints["demo-llama"], tmp_path / "reranker")
    scores = await ranked(folder, "simulated")
    assert sorted(scores) == [0, 1, 2]
    assert len(set(scores.values())) == 3
