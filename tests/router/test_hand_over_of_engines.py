"""Prefill and decode on real engines of their own, through a gateway and without Ray: KV crosses, tokens stay."""

import asyncio
import re

import httpx
import torch
from real_unit import MODEL, real_fleet
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers_greedy import greedy_tokens

from pdmux_actor.serving.commands import EngineSettings
from placement.unit_role import UnitRole

PROMPTS = tuple(list(range(30 + n, 30 + n + length)) for n, length in enumerate((5, 64, 130, 333)))
MAX_TOKENS = 24


async def test_prefill_and_decode__on_engines_of_their_own__say_what_transformers_says(demo_checkpoints) -> None:
    folder = demo_checkpoints["demo-llama"]
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [tokenizer.decode(greedy_tokens(network, prompt, MAX_TOKENS)) for prompt in PROMPTS]
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=1, dtype="float32", block_bytes=8192)

    async with (
        real_fleet(folder, settings, roles=(UnitRole.PREFILL, UnitRole.DECODE)) as url,
        httpx.AsyncClient(base_url=url, timeout=120) as http,
    ):

        async def completed(prompt: list[int]) -> str:
            asked = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
            reply = await http.post("/v1/completions", json=asked)
            assert reply.status_code == 200, reply.text
            (choice,) = reply.json()["choices"]
            assert (choice["finish_reason"], reply.json()["usage"]["completion_tokens"]) == ("length", MAX_TOKENS)
            return choice["text"]

        said = await asyncio.gather(*(completed(prompt) for prompt in PROMPTS))
        again = await asyncio.gather(*(completed(prompt) for prompt in PROMPTS))
        metrics = (await http.get("/metrics")).text

    assert said == expected
    assert again == expected
    counted = dict(re.findall(r"^muxfleet_kv_(\w+)\{.*\} (\S+)$", metrics, flags=re.MULTILINE))
    assert float(counted["transfers_total"]) == 2 * len(PROMPTS)
    assert float(counted["transfers_short_total"]) == 0
    # Layers x heads x K and V x dimensions x bytes, of full rows only, and of each prompt once.
    spec = network.config
    token_bytes = spec.num_hidden_layers * spec.num_key_value_heads * 2 * network.model.layers[0].self_attn.head_dim * 4
    moved_tokens = float(counted["transfer_bytes_total"]) / token_bytes
    assert 0 < moved_tokens <= sum(map(len, PROMPTS))
    assert moved_tokens > sum(map(len, PROMPTS[2:])) / 2
