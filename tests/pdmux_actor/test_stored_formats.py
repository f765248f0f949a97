"""Quantised checkpoints, as their makers publish them, in the engine: weights and greedy tokens."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from quantised_checkpoints import KINDS, write_quantised
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers_greedy import greedy_tokens

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights
from pdmux_actor.models.quantised import Int4Linear, Int8Linear, projection_maker
from pdmux_actor.models.quantised_weight import rounded_to_int8
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.stored_formats.registry import FORMATS
from pdmux_actor.models.tensor_reader import TensorReader
from pdmux_actor.models.weights import load_weights

NEW_TOKENS = 8
LENGTHS = (1, 3, 17, 100)
# Widths that 128 does not divide: the last block of each row and column is not whole.
SHAPE = CheckpointShape(
    model_type="qwen3",
    num_layers=2,
    hidden_size=192,
    intermediate_size=320,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "plain"
    write_random_checkpoint(folder, SHAPE, seed=5)
    return folder


def loaded(folder: Path, weights: str | None, share: RankShare = WHOLE) -> DecoderWeights:
    config = DecoderConfig.from_config("m", json.loads((folder / "config.json").read_text()), None, weights)
    return load_weights("m", folder, config, make_projection=projection_maker(config.spec.weights), share=share)


def held(weights: DecoderWeights) -> dict[str, Tensor]:
    """What the engine multiplies with, by the names of the first layer's products."""
    layer = weights.layers[0]
    prefix = "model.layers.0"
    q, kv = SHAPE.num_heads * SHAPE.head_dim, SHAPE.num_kv_heads * SHAPE.head_dim
    gate, up = layer.feed_forward.gate_up.weight.float().split(SHAPE.intermediate_size)
    query, key, value = layer.qkv.weight.float().split([q, kv, kv])
    found = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": value, "mlp.gate_proj": gate}
    found |= {
        "mlp.up_proj": up,
        "self_attn.o_proj": layer.output.weight,
        "mlp.down_proj": layer.feed_forward.down.weight,
    }
    return {f"{prefix}.{name}.weight": weight.float() for name, weight in found.items()}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_read__onto_a_device__a_dense_weight_comes_by_an_upload_from_the_host(
    plain: Path, tmp_path: Path, kind: str
) -> None:
    """A copy from pageable memory would hold a lock of the GPU."""
    uploaded: list[tuple[str, str, torch.Size]] = []

    def upload(target: Tensor, source: Tensor) -> None:
        uploaded.append((target.device.type, source.device.type, source.shape))

    write_quantised(plain, tmp_path / "stored", kind)
    config = DecoderConfig.from_config("m", json.loads((tmp_path / "stored" / "config.json").read_text()), None)
    reader = TensorReader(
        "m",
        tmp_path / "stored",
        dtype=torch.float32,
        device=torch.device("meta"),
        upload=upload,
        stored=config.stored,
    )
    shape = SHAPE.hidden_size, SHAPE.intermediate_size

    reader.load("model.layers.0.mlp.down_proj.weight", *shape)

    assert uploaded == [("meta", "cpu", torch.Size(shape))]


def continuations(model: torch.nn.Module) -> list[list[int]]:
    return [greedy_tokens(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]


def transformers_model(plain: Path, dense: dict[str, Tensor]) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM  # seconds to import

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    for name, tensor in dense.items():
        model.get_parameter(name).data = tensor
    return model


def engine_tokens(folder: Path, weights: str | None) -> list[list[int]]:
    rig = CpuRig(poisoned=True)
    try:
        rig.load("m", folder, weights=weights)
        sequences = [rig.sequence("m", make_prompt(length), NEW_TOKENS) for length in LENGTHS]
        rig.prefill(sequences)
        rig.decode(sequences, NEW_TOKENS - 1)
        return outputs(sequences, NEW_TOKENS)
    finally:
        rig.close()


def test_kinds__of_checkpoints__cover_the_register() -> None:
    assert {settings["quant_method"] for settings, _, _ in KINDS.values()} == {
        name
        for name, stored in FORMATS.items()
        if not stored.of_stacks  # those: test_gpt_oss.py
    }


@pytest.mark.parametrize("kind", KINDS)
def test_stored__unpacked__is_what_was_packed_and_says_what_transformers_says(
    plain: Path, tmp_path: Path, kind: str
) -> None:
    dense = write_quantised(plain, tmp_path / "m", kind)

    weights = held(loaded(tmp_path / "m", "dtype"))

    for name, weight in weights.items():
        torch.testing.assert_close(weight, dense[name], rtol=1e-6, atol=1e-7)
    assert engine_tokens(tmp_path / "m", "dtype") == continuations(transformers_model(plain, dense))


@pytest.mark.parametrize("kind", KINDS)
def test_stored__kept_as_the_plan_says__is_exact_for_four_bits_and_rounded_once_for_others(
    plain: Path, tmp_path: Path, kind: str
) -> None:
    dense = write_quantised(plain, tmp_path / "m", kind)
    kept = KINDS[kind][2]

    weights = loaded(tmp_path / "m", None)

    config = DecoderConfig.from_config("m", json.loads((tmp_path / "m/config.json").read_text()), None)
    assert config.spec.weights == kept
    expected_class = Int8Linear if kept == "int8" else Int4Linear
    for projection in (weights.layers[0].qkv, weights.layers[0].output, weights.layers[1].feed_forward.down):
        assert isinstance(projection, expected_class)
    exact = kept != "int8" or kind.startswith("compressed int8")
    for name, weight in held(weights).items():
        stands_for = dense[name] if exact else rounded_to_int8(dense[name]).dense()
        torch.testing.assert_close(weight, stands_for, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["fp8", "compressed fp8", "compressed int8", "compressed int4"])
def test_stored__read_by_transformers__says_the_same(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

    # transformers unpacks whole blocks only.
    write_random_checkpoint(tmp_path / "plain", replace(SHAPE, hidden_size=128, intermediate_size=256), seed=5)
    write_quantised(tmp_path / "plain", tmp_path / "m", kind)
    unpacks = FineGrainedFP8Config if kind == "fp8" else CompressedTensorsConfig
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", dtype=torch.float32, quantization_config=unpacks(dequantize=True)
    )

    assert engine_tokens(tmp_path / "m", "dtype") == continuations(theirs)


@pytest.mark.parametrize("kind", ["fp8", "compressed int4 with zeros", "gptq", "gptq out of order", "awq"])
@pytest.mark.parametrize("weights", [None, "dtype"])
def test_stored__divided_among_two_ranks__each_has_its_part(
    plain: Path, tmp_path: Path, kind: str, weights: str | None
) -> None:
    write_quantised(plain, tmp_path / "m", kind)
    whole = loaded(tmp_path / "m", "dtype").layers[0].feed_forward
    tolerance = 1e-6 if weights else 0.02  # of 8 bits, a rank's rows have scales of their own

    for rank in range(2):
        part = loaded(tmp_path / "m", weights, RankShare(rank=rank, num_ranks=2)).layers[0].feed_forward
        size = SHAPE.intermediate_size // 2
        of_rank = slice(rank * size, (rank + 1) * size)
        gate, up = whole.gate_up.weight.split(SHAPE.intermediate_size)
        torch.testing.assert_close(
            part.gate_up.weight.float(), torch.cat((gate[of_rank], up[of_rank])), rtol=0, atol=tolerance
        )
        torch.testing.assert_close(part.down.weight.float(), whole.down.weight[:, of_rank], rtol=0, atol=tolerance)


def test_stored__weights_int4_of_an_fp8_checkpoint__are_rounded_once_more(plain: Path, tmp_path: Path) -> None:
    write_quantised(plain, tmp_path / "m", "fp8")

    assert isinstance(loaded(tmp_path / "m", "int4").layers[0].output, Int4Linear)


@pytest.mark.parametrize(
    ("kind", "tensor", "changed", "message"),
    [
        ("gptq", "qzeros", None, r"tensor model\.layers\.1\.mlp\.down_proj\.qzeros is missing"),
        ("fp8", "weight_scale_inv", torch.zeros(7, 1), r"safetensors: tensor .*down_proj\.weight.* shape \[7, 1\]"),
        ("awq", "qweight", torch.zeros(320, 3, dtype=torch.int32), r"safetensors: tensor .*down_proj\.qweight unpacks"),
        ("gptq", "scales", torch.zeros(1, 192), r"safetensors: tensor .*down_proj\.qweight does not go with"),
        ("compressed int4", "weight_packed", torch.zeros(192, 3, dtype=torch.int32), r"down_proj\.weight_packed"),
    ],
)
def test_stored__tensors_that_do_not_go_together__are_named_with_their_file(
    plain: Path, tmp_path: Path, kind: str, tensor: str, changed: Tensor | None, message: str
) -> None:
    write_quantised(plain, tmp_path / "m", kind)
    path = tmp_path / "m/model.safetensors"
    tensors = load_file(path)
    name = f"model.layers.1.mlp.down_proj.{tensor}"
    del tensors[name]
    save_file(tensors if changed is None else {**tensors, name: changed}, path)

    with pytest.raises(ModelLoadError, match=message):
        loaded(tmp_path / "m", None)
