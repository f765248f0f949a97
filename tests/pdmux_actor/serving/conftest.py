import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.commands import EngineSettings

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
VOCAB_SIZE = 257


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint without weights: what the simulated executor and a unit need of one."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    ascii_first = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(ascii_first)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def engine_settings() -> EngineSettings:
    return EngineSettings(kind="simulated", kv_pool_bytes=32 * 1024 * 1024, num_cores=2)


@pytest.fixture
def make_assignment(checkpoint):
    def make(model: str = "tiny", quota_blocks: int = 1000, **changes) -> ModelAssignment:
        values = {"source": str(checkpoint), "slo": SLO} | changes
        return ModelAssignment(model=model, quota_blocks=quota_blocks, **values)

    return make


@pytest.fixture
def make_request():
    def make(request_id: str = "r", model: str = "tiny", max_tokens: int = 5, **changes) -> GenerateRequest:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **changes.pop("sampling", {}))
        values = {"prompt_token_ids": (1, 2, 3), "slo": SLO} | changes
        return GenerateRequest(request_id=request_id, model=model, sampling=sampling, **values)

    return make
