"""Shapes of models that tests of several packages calculate with."""

from dataclasses import replace

from profiler.specs import ModelSpec

LLAMA_3_8B = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    dtype="bfloat16",
)
LLAMA_2_7B = replace(
    LLAMA_3_8B, intermediate_size=11008, num_kv_heads=32, vocab_size=32000, max_position_embeddings=4096
)
