"""Shapes of the models that benchmarks name."""

from dataclasses import replace
from typing import Any

from profiler.specs import ModelSpec


def llama(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **others: Any) -> ModelSpec:  # noqa: ANN401
    """As Llama 3 unless `others` say otherwise."""
    base: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    sizes = {"num_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate, "num_heads": heads}
    return ModelSpec(**base | sizes | {"num_kv_heads": kv_heads} | others)


LLAMA_2_7B = llama(32, 4096, 11008, 32, 32, vocab_size=32000)
LLAMA_2_70B = llama(80, 8192, 28672, 64, 8, vocab_size=32000)
LLAMA_3_8B = llama(32, 4096, 14336, 32, 8)
LLAMA_3_70B = replace(LLAMA_2_70B, vocab_size=128_256)
LLAMA_3_3B = llama(28, 3072, 8192, 24, 8, tie_word_embeddings=True)
LLAMA_3_1B = llama(16, 2048, 8192, 32, 8, head_dim=64, tie_word_embeddings=True)
QWEN_72B = llama(80, 8192, 24576, 64, 64, vocab_size=152_064)
CODE_LLAMA_34B = replace(LLAMA_2_70B, num_layers=48, intermediate_size=22016)
QWEN3_32B = llama(64, 5120, 25600, 64, 8, vocab_size=151_936)
QWEN3_30B_A3B = llama(
    *(48, 2048, 6144, 32, 4),
    architecture="Qwen3MoeForCausalLM",
    vocab_size=151_936,
    num_experts=128,
    experts_per_token=8,
    expert_intermediate_size=768,
)
