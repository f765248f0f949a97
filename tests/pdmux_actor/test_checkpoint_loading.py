import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import eos_token_ids, read_json, resolve_checkpoint
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.weights import load_weights
from profiler.families.registry import FAMILIES

SHAPE = CheckpointShape(
    model_type="llama", num_layers=2, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8
)

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path, SHAPE, seed=0)
    return tmp_path


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def load_config(folder: Path, dtype: str | None = None) -> DecoderConfig:
    return DecoderConfig.from_config("m", read_json("m", folder, "config.json"), dtype)


def load(folder: Path, dtype: str | None = None) -> DecoderWeights:
    return load_weights("m", folder, load_config(folder, dtype))


def shard(folder: Path) -> None:
    """Splits model.safetensors into two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_load_weights__single_file__fuses_q_k_v_and_gate_up(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")

    weights = load(folder)

    layer, prefix = weights.layers[1], "model.layers.1"
    parts = [tensors[f"{prefix}.self_attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj")]
    assert torch.equal(layer.qkv.weight, torch.cat(parts))
    parts = [tensors[f"{prefix}.mlp.{name}.weight"] for name in ("gate_proj", "up_proj")]
    assert torch.equal(layer.feed_forward.gate_up.weight, torch.cat(parts))
    assert torch.equal(weights.lm_head.weight, tensors["lm_head.weight"])


def test_load_weights__sharded__equals_the_single_file(folder: Path) -> None:
    whole = load(folder)
    shard(folder)

    parts = load(folder)

    assert torch.equal(parts.embedding, whole.embedding)
    assert all(
        torch.equal(a.feed_forward.down.weight, b.feed_forward.down.weight)
        for a, b in zip(parts.layers, whole.layers, strict=True)
    )


def test_load_weights__other_dtype__converts(folder: Path) -> None:
    weights = load(folder, "bfloat16")

    assert weights.layers[0].qkv.weight.dtype == torch.bfloat16
    assert torch.equal(weights.embedding, load(folder).embedding.bfloat16())


def test_load_weights__tied_checkpoint_that_also_stores_lm_head__uses_the_embedding(folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")

    weights = load(folder)

    assert weights.lm_head.weight is weights.embedding


def test_load_weights__tied_checkpoint_with_an_lm_head_of_its_own__is_refused(folder: Path) -> None:
    """As fine-tunes come that trained the classifier alone: transformers, too, would not use the embedding for it."""
    edit_json(folder / "config.json", tie_word_embeddings=True)

    with pytest.raises(ModelLoadError, match=r"lm_head\.weight is not.*set tie_word_embeddings to false"):
        load(folder)


def test_load_weights__unused_tensor__warns(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(tensors, folder / "model.safetensors")

    load(folder)

    assert "model.layers.0.self_attn.q_proj.bias" in caplog.text


@pytest.mark.parametrize(
    ("name", "replacement", "reason"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "tensor model.layers.1.mlp.up_proj.weight is missing"),
        ("lm_head.weight", None, "tensor lm_head.weight is missing"),
        ("model.norm.weight", torch.zeros(31), r"model.norm.weight has shape \[31\], config.json implies \[32\]"),
        ("model.layers.0.self_attn.k_proj.weight", torch.zeros(32, 32), r"k_proj.weight has shape \[32, 32\]"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.int8), "model.norm.weight holds int8"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.float8_e4m3fn), "model.norm.weight holds float8_e4m3fn"),
    ],
)
def test_load_weights__missing_or_misshapen_tensor__names_it(
    folder: Path, name: str, replacement: torch.Tensor | None, reason: str
) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file({**tensors, **({} if replacement is None else {name: replacement})}, folder / "model.safetensors")

    with pytest.raises(ModelLoadError, match=reason):
        load(folder)


@pytest.mark.parametrize("kept_bytes", [0, 4, 100, 20_000])
def test_load_weights__truncated_file__says_so(folder: Path, kept_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])

    with pytest.raises(ModelLoadError, match=r"not a complete safetensors file.*download the file again"):
        load(folder)


def test_load_weights__missing_shard__names_the_file(folder: Path) -> None:
    shard(folder)
    (folder / "model-2.safetensors").unlink()

    with pytest.raises(ModelLoadError, match=r"model-2\.safetensors is missing or"):
        load(folder)


def test_load_weights__index_points_to_absent_tensor__names_it(folder: Path) -> None:
    shard(folder)
    tensors = load_file(folder / "model-1.safetensors")
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, folder / "model-1.safetensors")

    with pytest.raises(ModelLoadError, match=f"tensor {lost} is missing"):
        load(folder)


@pytest.mark.parametrize(
    "index",
    [
        "{}",
        '{"weight_map": {"lm_head.weight": 3}}',
        '{"weight_map": {"lm_head.weight": "../elsewhere/model.safetensors"}}',
        '{"weight_map": {"lm_head.weight": "/etc/passwd"}}',
        "not json",
    ],
)
def test_load_weights__broken_index__says_so(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        load(folder)


def test_load_weights__only_pickled_weights__asks_for_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelLoadError, match="convert the checkpoint to safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "quip"}}, "quantization_config.quant_method='quip'"),
        ({"quantization_config": "fp8"}, "quantization_config.quant_method='None'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "quantization_config.bits='3'"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}}, "quantization_config.version"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
            "quantization_config.format='nvfp4-pack-quantized'",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}},
            "quantization_config.weight_block_size='128'",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype"),
        ({"hidden_size": "many"}, "hidden_size='many'"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_scaling.rope_type='spiral'"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
            "rope_scaling.short_factor has 1 numbers",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [0]}}, "rope_scaling.short_factor="),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor='2' is no number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor=0 is no number above 0"),
        ({"rope_theta": 0}, "rope_theta=0 is no number above 0"),
        ({"rope_theta": "10000"}, "rope_theta='10000' is no number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rms_norm_eps": "tiny"}, "malformed number"),
    ],
)
def test_config__not_supported__names_the_field(folder: Path, changes: dict[str, Any], field: str) -> None:
    edit_json(folder / "config.json", **changes)

    with pytest.raises(ModelLoadError, match=field):
        load_config(folder)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_config__field_missing__names_it(folder: Path, field: str) -> None:
    content = json.loads((folder / "config.json").read_text())
    del content[field]
    (folder / "config.json").write_text(json.dumps(content))

    with pytest.raises(ModelLoadError, match=field):
        load_config(folder)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 128}, 128),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 128}, None),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 128, "use_sliding_window": True}, 128),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 128,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            None,
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 128,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            128,
        ),
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 128}, None),
        (
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "sliding_window": 128,
                "use_sliding_window": True,
                "max_window_layers": 2,  # as published, and not read by transformers
                **EXPERTS,
            },
            128,
        ),
    ],
)
def test_config__sliding_window__counts_where_the_model_slides(
    folder: Path, changes: dict[str, Any], window: int | None
) -> None:
    edit_json(folder / "config.json", **{"max_window_layers": 0, **changes})

    assert load_config(folder).traits.window_tokens == window


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Qwen2ForCausalLM"])
def test_config__without_the_field__has_the_default_window(folder: Path, architecture: str) -> None:
    content = json.loads((folder / "config.json").read_text())
    del content["sliding_window"]
    content |= {"architectures": [architecture], "use_sliding_window": True, "max_window_layers": 0}
    (folder / "config.json").write_text(json.dumps(content))

    assert load_config(folder).traits.window_tokens == 4096


@pytest.mark.parametrize(
    ("model_type", "family"),
    [(family.model_type, family.name) for family in FAMILIES.values() if family.traits is not None],
)
def test_config__without_rotary_base_and_epsilon__has_those_of_transformers(
    folder: Path, model_type: str, family: str
) -> None:
    from transformers import CONFIG_MAPPING

    content = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in content.items() if not k.startswith("rope_") and k not in ("rms_norm_eps", "model_type")}
    kept |= {"architectures": [family], "num_local_experts": 4, **EXPERTS}
    (folder / "config.json").write_text(json.dumps(kept))

    config, assumed = load_config(folder), CONFIG_MAPPING[model_type]()

    assert config.rms_norm_eps == assumed.rms_norm_eps
    assert config.rope.theta == assumed.rope_parameters["rope_theta"]


def test_config__rope_parameters_of_transformers_5__are_read(folder: Path) -> None:
    edit_json(
        folder / "config.json",
        rope_theta=None,
        rope_scaling=None,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0},
    )

    rope = load_config(folder).rope

    assert (rope.rope_type, rope.theta, rope.scaling["factor"]) == ("linear", 777.0, 2.0)


@pytest.mark.parametrize(
    ("source", "reason"),
    [("/no/such/folder", "does not exist"), ("./nowhere", "does not exist"), ("a b c", "neither a folder nor")],
)
def test_resolve_checkpoint__no_such_source__says_what_to_correct(source: str, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        resolve_checkpoint("m", source, None)


def test_resolve_checkpoint__a_file__asks_for_the_folder(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_checkpoint("m", str(folder / "config.json"), None)


def test_resolve_checkpoint__hub_out_of_reach__names_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ModelLoadError, match=r"'some-org/some-model'.*the download failed.*local folder"):
        resolve_checkpoint("m", "some-org/some-model", None)


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_read_json__missing_or_broken__names_the_file(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_json("m", tmp_path, "config.json")


def test_eos_token_ids__three_places__are_joined(folder: Path) -> None:
    edit_json(folder / "config.json", eos_token_id=100)
    edit_json(folder / "generation_config.json", eos_token_id=[101, 102])
    edit_json(folder / "tokenizer_config.json", eos_token={"content": "<|im_start|>"})

    assert eos_token_ids("m", folder, read_json("m", folder, "config.json")) == {100, 101, 102, 1}


def test_eos_token_ids__only_config__is_enough(folder: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        (folder / name).unlink()

    assert eos_token_ids("m", folder, {"eos_token_id": [4, 5]}) == {4, 5}
    assert eos_token_ids("m", folder, {"eos_token_id": None}) == frozenset()


@pytest.mark.parametrize("value", ["</s>", ["</s>"], 1.5])
def test_eos_token_ids__not_a_number__names_the_file(folder: Path, value: object) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json: eos_token_id"):
        eos_token_ids("m", folder, {"eos_token_id": value})
