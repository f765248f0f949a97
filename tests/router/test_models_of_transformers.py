"""A model that runs by transformers' code answers through the gateway as transformers does."""

import shutil
import sys
from pathlib import Path

import openai
from real_unit import MODEL, real_fleet
from transformers_greedy import greedy_tokens

from pdmux_actor.serving.commands import EngineSettings

sys.path.append(str(Path(__file__).parents[1] / "pdmux_actor"))

from tiny_models import write_tiny_checkpoint

NEW_TOKENS = 12


async def test_completion__of_a_tiny_gemma__is_transformers(demo_checkpoints, tmp_path) -> None:
    network = write_tiny_checkpoint(tmp_path, "gemma2", vocab_size=640)
    for file in demo_checkpoints["demo-llama"].glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    prompt = [3 + (7 * place) % 600 for place in range(90)]  # longer than its window

    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=1, dtype="float32")
    async with real_fleet(tmp_path, settings) as url:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=250)
        reply = await sdk.completions.create(
            model=MODEL, prompt=prompt, max_tokens=NEW_TOKENS, temperature=0, logprobs=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        await sdk.close()

    assert reply.usage.completion_tokens == NEW_TOKENS
    assert reply.choices[0].token_ids == greedy_tokens(network, prompt, NEW_TOKENS)
