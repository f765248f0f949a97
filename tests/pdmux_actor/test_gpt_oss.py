"""gpt-oss in the native decoder: sinks, windows by layer, experts in stacks and as they are published (MXFP4)."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from safetensors.torch import load_file, save_file
from tiny_models import write_tiny_checkpoint
from transformers_greedy import greedy_tokens
from transformers_rig import quiet_transformers

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.mxfp4_linear import Mxfp4Linear
from pdmux_actor.models.quantised_weight import rounded_to_int4, rounded_to_int8

NEW_TOKENS = 6
LENGTHS = (300, 1, 2, 64, 39, 41, 150, 17, 90)  # nine of them, around the window of 40 tokens
GROUP = 32


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig(poisoned=True)
    yield rig
    rig.close()


def write_gpt_oss(folder: Path, **changes: Any) -> Any:
    """Returns transformers' model: biases and sinks differ from zero, and gates are clamped now and then."""
    model = write_tiny_checkpoint(folder, "gpt_oss", **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(len(name)))
            if name.endswith("gate_up_proj"):
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    return model


def expected(model: Any, told: Sequence[Sequence[int]], lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """What transformers' model says to prompts of these lengths, instead of what was told."""
    return [
        greedy_tokens(model, make_prompt(length, vocab_size=160), NEW_TOKENS, likely=likely)
        for length, likely in zip(lengths, told, strict=True)
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    return folder, write_gpt_oss(folder)


def said(rig: CpuRig, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    sequences = [rig.sequence("m", make_prompt(length, vocab_size=160), NEW_TOKENS) for length in lengths]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


def test_gpt_oss__sliced_chunked_cached_and_any_batch__says_what_transformers_says(rig: CpuRig, tmp_path: Path) -> None:
    model = write_gpt_oss(tmp_path)
    rig.load("m", tmp_path)
    assert isinstance(rig.executor._attached["m"].decoder, Decoder), "not by transformers' code"
    prompts = [make_prompt(length, vocab_size=160) for length in LENGTHS]

    whole = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(whole)
    rig.decode(whole, NEW_TOKENS - 1)
    sliced = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(sliced, layers_per_slice=2)
    rig.decode(sliced, NEW_TOKENS - 1, steps_per_launch=4)
    alone = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    for sequence in alone:
        rig.prefill([sequence], layers_per_slice=1)
        rig.decode([sequence], NEW_TOKENS - 1)
    chunked = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=70)
    cached = rig.over_prefix(whole[0], 256, NEW_TOKENS)
    rig.decode([cached], NEW_TOKENS - 1)

    theirs = expected(model, outputs(whole, NEW_TOKENS))
    for sequences in (whole, sliced, alone, chunked):
        assert outputs(sequences, NEW_TOKENS) == theirs
    assert outputs([cached], NEW_TOKENS) == theirs[:1]


@pytest.mark.parametrize("length", range(1, 300, 23))
def test_gpt_oss__prompts_of_any_length__say_what_transformers_says(
    rig: CpuRig, plain: tuple[Path, Any], length: int
) -> None:
    folder, model = plain
    rig.load("m", folder)

    told = said(rig, (length,))
    assert told == expected(model, told, (length,))


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"] * 3},
        {"attention_bias": False},
        {"swiglu_alpha": 1.0, "swiglu_limit": 0.5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
        {"num_experts_per_tok": 4},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_gpt_oss__another_configuration__says_what_transformers_says(
    rig: CpuRig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = write_gpt_oss(tmp_path, **changes)
    rig.load("m", tmp_path)

    told = said(rig, (1, 60, 200))
    assert told == expected(model, told, (1, 60, 200))


def test_gpt_oss__config_without_rotary_scaling__takes_transformers_default(rig: CpuRig, tmp_path: Path) -> None:
    model = write_gpt_oss(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("rope_parameters")["rope_type"] == "yarn"
    (tmp_path / "config.json").write_text(json.dumps(config))
    rig.load("m", tmp_path)

    told = said(rig, (60,))
    assert told == expected(model, told, (60,))


def test_gpt_oss__in_bfloat16__says_the_same_in_any_batch(rig: CpuRig, tmp_path: Path) -> None:
    """As wide as compiled kernels want it, where there are any."""
    write_gpt_oss(tmp_path, head_dim=32)
    rig.load("m", tmp_path, dtype="bfloat16")

    assert said(rig) == [said(rig, (length,))[0] for length in LENGTHS]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_gpt_oss__rounded__is_near_and_takes_as_many_bytes_as_planned(
    rig: CpuRig, tmp_path: Path, weights: str
) -> None:
    model = write_gpt_oss(tmp_path, hidden_size=256, head_dim=64, intermediate_size=256)
    info = rig.load("m", tmp_path, weights=weights)

    for layer, exact in zip(rig.executor._attached["m"].decoder.weights.layers, model.model.layers, strict=True):
        for number, mlp in enumerate(layer.feed_forward.experts.mlps):
            gate_up, down = exact.mlp.experts.gate_up_proj[number].t(), exact.mlp.experts.down_proj[number].t()
            rounded = {"int8": rounded_to_int8, "int4": rounded_to_int4}[weights]
            torch.testing.assert_close(
                mlp.gate_up.weight, rounded(torch.cat((gate_up[::2], gate_up[1::2])).detach()).dense()
            )
            torch.testing.assert_close(mlp.down.weight, rounded(down.detach().contiguous()).dense())
    assert info.spec.weights == weights
    assert len(said(rig, (60, 3))) == 2


def packed_mxfp4(values: int, generator: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks and scales of `[*shape, values]`."""
    groups = values // GROUP
    blocks = torch.randint(0, 256, (*shape, groups, GROUP // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randint(121, 125, (*shape, groups), generator=generator, dtype=torch.uint8)
    return blocks, scales


def write_mxfp4(folder: Path) -> Any:
    """As OpenAI publishes it. Returns the model over what transformers unpacks."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = write_gpt_oss(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks, scales = packed_mxfp4(columns, generator, experts, rows)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        dense = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert dense.shape == (experts, columns, rows)
        model.get_parameter(name).data = dense
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return model


def test_mxfp4__as_published__says_what_transformers_says_over_the_unpacked_experts(
    rig: CpuRig, tmp_path: Path
) -> None:
    model = write_mxfp4(tmp_path)
    info = rig.load("m", tmp_path)

    experts = rig.executor._attached["m"].decoder.weights.layers[1].feed_forward.experts
    assert all(isinstance(part, Mxfp4Linear) for mlp in experts.mlps for part in (mlp.gate_up, mlp.down))
    assert torch.equal(experts.mlps[2].down.weight, model.model.layers[1].mlp.experts.down_proj[2].t())
    assert info.spec.weights == "mxfp4"
    told = said(rig)
    assert told == expected(model, told)


def test_mxfp4__in_bfloat16__says_what_the_unpacked_experts_say(rig: CpuRig, tmp_path: Path) -> None:
    """By the compiled kernel, where there is one: sums in another order than oneDNN's, of the same products."""
    write_mxfp4(tmp_path)
    rig.load("m", tmp_path, dtype="bfloat16")
    kept = rig.executor._attached["m"].decoder.weights.layers[0].feed_forward.experts.mlps[1].gate_up
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()

    exact = torch.nn.functional.linear(inputs.double(), kept.weight.double(), kept.bias.double())

    torch.testing.assert_close(kept(inputs).double(), exact, rtol=1 / 128, atol=1 / 128)
    assert len(said(rig)) == len(LENGTHS)


@pytest.mark.parametrize("write", [write_gpt_oss, write_mxfp4])
def test_gpt_oss__that_slept__says_the_same(write: Callable[[Path], object], rig: CpuRig, tmp_path: Path) -> None:
    write(tmp_path)
    rig.load("m", tmp_path)
    before = said(rig)

    assert rig.executor.sleep_model("m", 1 << 30) > 0
    rig.executor.detach_model("m")
    rig.wake("m")

    assert said(rig) == before


def test_mxfp4__weights_dtype__unpacks_them(rig: CpuRig, tmp_path: Path) -> None:
    model = write_mxfp4(tmp_path)
    info = rig.load("m", tmp_path, weights="dtype")

    assert info.spec.weights is None
    told = said(rig, (60,))
    assert told == expected(model, told, (60,))


def test_mxfp4__rounded_to_four_bits__are_the_rounded_unpacked_experts(rig: CpuRig, tmp_path: Path) -> None:
    model = write_mxfp4(tmp_path)
    rig.load("m", tmp_path, weights="int4")

    mlp = rig.executor._attached["m"].decoder.weights.layers[1].feed_forward.experts.mlps[2]
    down = model.model.layers[1].mlp.experts.down_proj[2].t().contiguous()
    torch.testing.assert_close(mlp.down.weight, rounded_to_int4(down).dense())


def test_mxfp4__a_block_is_missing_or_too_short__names_file_and_tensor(rig: CpuRig, tmp_path: Path) -> None:
    write_mxfp4(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"

    save_file({**tensors, f"{name}_scales": tensors[f"{name}_scales"][:, :-1].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: tensor {name}_scales does not go with"):
        rig.load("m", tmp_path)
    del tensors[f"{name}_scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"tensor {name}_scales is missing"):
        rig.load("m", tmp_path)


def test_stack__of_other_experts_than_the_config__is_named(rig: CpuRig, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 3}))
    tensors = load_file(tmp_path / "model.safetensors")
    routers = {name: tensor[:3].clone() for name, tensor in tensors.items() if ".router." in name}
    save_file({**tensors, **routers}, tmp_path / "model.safetensors")

    with pytest.raises(ModelLoadError, match=r"experts\.gate_up_proj.* has shape \[4, .*implies 3 experts"):
        rig.load("m", tmp_path)


def test_mxfp4__of_another_family_or_by_transformers_code__is_refused(rig: CpuRig, tmp_path: Path) -> None:
    write_mxfp4(tmp_path / "oss")
    executor = TorchCpuExecutor(
        kv_pool_bytes=1 << 20, block_bytes=4096, device=rig.executor.device, implementation="transformers"
    )
    try:
        with pytest.raises(
            ModelLoadError, match="'mxfp4' is not read by transformers' code here; serve it by the native"
        ):
            executor.load_model(ModelSource(model="m", source=str(tmp_path / "oss")))
    finally:
        executor.close()
    write_tiny_checkpoint(tmp_path / "llama", "llama")
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    quantised = {**config, "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "llama" / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(
        ModelLoadError, match="quant_method='mxfp4' is not supported; it is read of stacked experts only"
    ):
        rig.load("m", tmp_path / "llama")


def test_layer_types__of_another_number_of_layers__are_named(rig: CpuRig, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_types": ["full_attention"]}))

    with pytest.raises(ModelLoadError, match=r"layer_types=.* is not supported; name the kind of each of .*=3 layers"):
        rig.load("m", tmp_path)
