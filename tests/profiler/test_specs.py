from dataclasses import replace
from typing import Any

import pytest

from profiler.errors import UnsupportedModel
from profiler.specs import ModelSpec

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "torch_dtype": "bfloat16",
}
MIXTRAL_8X7B: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
QWEN2_0_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [  # parameters as the model cards count them, in billions
        (LLAMA_3_8B, 8.03, 7.5),
        (QWEN3_30B_A3B, 30.5, 3.0),
        (MIXTRAL_8X7B, 46.7, 12.75),
        (QWEN2_0_5B, 0.494, 0.494),
    ],
)
def test_params__published_models__are_those_of_their_cards(
    config: dict[str, Any], total: float, active: float
) -> None:
    spec = ModelSpec.from_config(config)

    assert spec.num_params / 1e9 == pytest.approx(total, rel=0.005)
    assert spec.num_active_params / 1e9 == pytest.approx(active, rel=0.02)


def test_dense_layers__of_a_mixture__are_those_the_config_leaves_out() -> None:
    spec = ModelSpec.from_config({**QWEN3_30B_A3B, "mlp_only_layers": [0, 1], "decoder_sparse_step": 2})

    assert spec.num_dense_layers == 25  # 24 even ones and layer 1
    assert spec.num_moe_layers == 23


@pytest.mark.parametrize(("num_gpus", "bytes_per_token"), [(1, 131072), (2, 65536), (8, 16384), (16, 16384)])
def test_kv_bytes__more_gpus_than_kv_heads__are_copied(num_gpus: int, bytes_per_token: int) -> None:
    assert ModelSpec.from_config(LLAMA_3_8B).kv_bytes_per_token_per_gpu(num_gpus) == bytes_per_token


@pytest.mark.parametrize(
    ("config", "changes", "field"),
    [
        (LLAMA_3_8B, {"hidden_size": None}, "hidden_size"),
        (LLAMA_3_8B, {"hidden_size": "many"}, "hidden_size"),
        (LLAMA_3_8B, {"num_hidden_layers": -1}, "num_hidden_layers"),
        (LLAMA_3_8B, {"architectures": ["MambaForCausalLM"]}, "architectures"),
        (LLAMA_3_8B, {"architectures": {"0": "LlamaForCausalLM"}}, "architectures"),
        (LLAMA_3_8B, {"architectures": 1}, "architectures"),
        (LLAMA_3_8B, {"is_causal": False}, "is_causal"),
        (LLAMA_3_8B, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (LLAMA_3_8B, {"text_config": {"use_bidirectional_attention": "all"}}, "use_bidirectional_attention"),
        (QWEN3_30B_A3B, {"mlp_only_layers": 3}, "mlp_only_layers"),
        (MIXTRAL_8X7B, {"num_local_experts": None}, "num_local_experts"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "num_experts_per_tok"),
    ],
)
def test_from_config__unusable__names_the_field(config: dict[str, Any], changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        ModelSpec.from_config({**config, **changes})

    assert refusal.value.field == field
    assert refusal.value.remedy


@pytest.mark.parametrize("said", [{"is_causal": True}, {"use_bidirectional_attention": "vision"}, {"is_causal": None}])
def test_from_config__attention_to_later_tokens_of_images_only__is_a_decoder(said: dict[str, Any]) -> None:
    assert ModelSpec.from_config({**LLAMA_3_8B, **said}) == ModelSpec.from_config(LLAMA_3_8B)


def test_spec__of_a_dense_model__has_no_experts() -> None:
    spec = ModelSpec.from_config(LLAMA_3_8B)

    assert not spec.is_moe
    assert spec == replace(spec, num_experts=0, num_dense_layers=0)


@pytest.mark.parametrize(
    ("scaling", "named", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 32768, 131072),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 40960, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072, 131072),
        ({"rope_type": "linear", "factor": 2.0}, 4096, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072, 131072),
        ({"rope_type": "yarn", "factor": "4"}, 32768, 32768),
        (None, 32768, 32768),
    ],
)
def test_context_tokens__rotary_scaling__is_as_far_as_an_operator_may_go(
    scaling: dict[str, Any] | None, named: int, longest: int
) -> None:
    spec = ModelSpec.from_config({**LLAMA_3_8B, "max_position_embeddings": named, "rope_scaling": scaling})

    assert spec.context_tokens(None) == named
    assert spec.context_tokens(10**7) == longest
    assert spec.context_tokens(1000) == 1000


@pytest.mark.parametrize(
    ("quantisation", "weights"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8"),
        ({"quant_method": "gptq", "bits": 3}, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4_group32"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "int4_group64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "int8"),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
        ({"quant_method": "compressed-tensors"}, None),
        (None, None),
    ],
)
def test_weights__of_a_quantised_checkpoint__are_what_its_config_says(
    quantisation: dict[str, Any] | None, weights: str | None
) -> None:
    assert ModelSpec.from_config({**LLAMA_3_8B, "quantization_config": quantisation}).weights == weights


@pytest.mark.parametrize(("weights", "gib"), [(None, 15.0), ("int8", 8.5), ("int4", 5.4)])
def test_weight_bytes__of_llama_3_8b__leave_embeddings_in_their_dtype(weights: str | None, gib: float) -> None:
    spec = ModelSpec.from_config(LLAMA_3_8B, weights=weights)

    assert spec.weight_bytes / 2**30 == pytest.approx(gib, rel=0.01)
    assert spec.kv_bytes_per_token == ModelSpec.from_config(LLAMA_3_8B).kv_bytes_per_token


def test_weights__asked_for_in_dtype__are_plain_whatever_the_checkpoint_has() -> None:
    quantised = {**LLAMA_3_8B, "quantization_config": {"quant_method": "fp8"}}

    assert ModelSpec.from_config(quantised, weights="dtype") == ModelSpec.from_config(LLAMA_3_8B)
    assert ModelSpec.from_config(quantised, weights="int4").weights == "int4"


def test_weights__unknown__names_those_there_are() -> None:
    with pytest.raises(UnsupportedModel, match="int8, int4"):
        ModelSpec.from_config(LLAMA_3_8B, weights="int3")
