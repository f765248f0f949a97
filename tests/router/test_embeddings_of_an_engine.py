"""Embeddings from the unmodified SDK to an engine's process and back."""

import numpy as np
import openai
import pytest
import torch
from real_unit import MODEL, real_fleet
from transformers import AutoModel, AutoTokenizer

from pdmux_actor.serving.commands import EngineSettings

TEXTS = ["The capital of France is Paris.", "b", "long " * 60]


async def asked(folder, kind: str, **settings) -> list[np.ndarray]:
    """Unit vectors of TEXTS, which are the same when they are asked for again, and as token ids."""
    async with real_fleet(folder, EngineSettings(kind=kind, kv_pool_bytes=256 << 20, num_cores=2, **settings)) as url:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        replies = [
            await sdk.embeddings.create(model=MODEL, input=given)
            for given in (TEXTS, TEXTS, [tokenizer(text).input_ids for text in TEXTS])
        ]
        await sdk.close()
    vectors = [[np.array(entry.embedding) for entry in reply.data] for reply in replies]
    for again in vectors[1:]:
        assert [float(a @ b) for a, b in zip(vectors[0], again, strict=True)] == pytest.approx([1.0] * 3, abs=1e-5)
    assert [float(np.linalg.norm(vector)) for vector in vectors[0]] == pytest.approx([1.0] * 3, abs=1e-5)
    return vectors[0]


async def test_embeddings__of_a_real_engine__are_transformers(demo_checkpoints) -> None:
    folder = demo_checkpoints["demo-llama"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    vectors = await asked(folder, "torch_cpu", dtype="float32")

    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.inference_mode():
            state = network(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0, -1].numpy()
        assert float(vector @ state / np.linalg.norm(state)) > 0.9999


async def test_embeddings__of_a_simulated_unit__are_made_up_from_the_prompt(demo_checkpoints) -> None:
    first, second, third = await asked(demo_checkpoints["demo-llama"], "simulated")
    assert max(abs(float(first @ second)), abs(float(second @ third)), abs(float(first @ third))) < 0.9
