"""GGUF files in the engine: weights and greedy tokens as transformers reads them, tokenizers, and bad files."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from gguf_checkpoints import Kind, write_gguf
from huggingface_hub import constants
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers_greedy import greedy_tokens

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import eos_token_ids, files_of, read_json, resolve_checkpoint
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights
from pdmux_actor.models.gguf_files.described_config import described_config
from pdmux_actor.models.gguf_files.opened_file import open_gguf
from pdmux_actor.models.quantised import Int4Linear, Int8Linear, projection_maker
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.rope import RopeConfig, inverse_frequencies, rotary_table
from pdmux_actor.models.weights import load_weights

NEW_TOKENS = 6
LENGTHS = (1, 3, 40)
FOUR_BITS = {"Q4_0": Kind.Q4_0, "Q4_1": Kind.Q4_1, "Q4_K": Kind.Q4_K}
MIXED = {"ffn_down": Kind.Q6_K, "attn_v": Kind.Q6_K, "attn_output": Kind.Q5_0, "output.": Kind.Q8_0}


def shape_of(model_type: str, **other: object) -> CheckpointShape:
    sizes = {"num_layers": 1, "hidden_size": 256, "intermediate_size": 256, "num_heads": 4, "num_kv_heads": 2}
    return CheckpointShape(model_type=model_type, **{**sizes, "head_dim": 64, **other})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig()
    yield rig
    rig.close()


def made(folder: Path, shape: CheckpointShape, kinds: dict[str, Kind], rest: Kind = Kind.F32) -> Path:
    write_random_checkpoint(folder / "plain", shape, seed=3)
    write_gguf(folder / "plain", folder / "tiny.gguf", kinds, rest)
    return folder / "tiny.gguf"


def by_transformers(file: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)


def continuations(model: torch.nn.Module) -> list[list[int]]:
    return [greedy_tokens(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]


def loaded(file: Path, weights: str | None, dtype: str, share: RankShare = WHOLE) -> DecoderWeights:
    folder = resolve_checkpoint("m", str(file), None)
    config = DecoderConfig.from_config("m", read_json("m", folder, "config.json"), dtype, weights)
    return load_weights("m", folder, config, make_projection=projection_maker(config.spec.weights), share=share)


@pytest.mark.parametrize(
    ("shape", "kinds", "rest"),
    [
        (shape_of("llama"), MIXED, Kind.Q4_K),
        (shape_of("qwen2", tie_word_embeddings=True), {}, Kind.Q8_0),
        (shape_of("qwen3", head_dim=128), {"attn": Kind.F16}, Kind.BF16),
    ],
    ids=["llama-Q4_K_M", "qwen2-Q8_0", "qwen3-BF16"],
)
def test_gguf_file__unpacked__says_what_transformers_says(
    tmp_path: Path, rig: CpuRig, shape: CheckpointShape, kinds: dict[str, Kind], rest: Kind
) -> None:
    file = made(tmp_path, shape, kinds, rest)

    rig.load("m", file, dtype="float32", weights="dtype")

    sequences = [rig.sequence("m", make_prompt(length), NEW_TOKENS) for length in LENGTHS]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1)
    assert outputs(sequences, NEW_TOKENS) == continuations(by_transformers(file))


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_mixture__experts_in_one_tensor__are_those_of_the_checkpoint(
    tmp_path: Path, rig: CpuRig, model_type: str
) -> None:
    """transformers 5.23 reads neither (no Mixtral, experts of one size only): the checkpoint that the file was made of
    stands in.
    """
    file = made(tmp_path, shape_of(model_type, num_experts=4), {})

    for model, source in (("gguf", file), ("plain", tmp_path / "plain")):
        rig.load(model, source, dtype="float32")
    sequences = [rig.sequence(model, make_prompt(17), NEW_TOKENS) for model in ("gguf", "plain")]
    for sequence in sequences:
        rig.prefill([sequence])
        rig.decode([sequence], NEW_TOKENS - 1)

    first, second = outputs(sequences, NEW_TOKENS)
    assert first == second


@pytest.mark.parametrize("kind", FOUR_BITS)
def test_four_bits__kept__are_the_files_own_levels(tmp_path: Path, kind: str) -> None:
    file = made(tmp_path, shape_of("llama"), {}, FOUR_BITS[kind])

    layer = loaded(file, None, "float32").layers[0]
    exact = loaded(file, "dtype", "float32").layers[0]

    assert isinstance(layer.qkv, Int4Linear)
    for kept, plain in ((layer.qkv, exact.qkv), (layer.output, exact.output)):
        assert torch.allclose(kept.weight, plain.weight, atol=float(plain.weight.abs().max()) * 1e-6)


def test_mixed_types__kept__are_rounded_once_more_to_eight_bits(tmp_path: Path) -> None:
    file = made(tmp_path, shape_of("llama"), MIXED, Kind.Q4_K)

    layer, exact = (loaded(file, weights, "bfloat16").layers[0] for weights in (None, "dtype"))

    assert isinstance(layer.qkv, Int8Linear)
    step = exact.qkv.weight.float().abs().amax(dim=1, keepdim=True) / 127
    assert bool(((layer.qkv.weight.float() - exact.qkv.weight.float()).abs() <= step).all())


@pytest.mark.parametrize("weights", ["dtype", None])
def test_two_ranks__together__have_the_whole(tmp_path: Path, weights: str | None) -> None:
    file = made(tmp_path, shape_of("llama"), {}, Kind.Q4_0)

    whole = loaded(file, weights, "float32").layers[0]
    parts = [loaded(file, weights, "float32", RankShare(rank=rank, num_ranks=2)).layers[0] for rank in range(2)]

    assert torch.equal(torch.cat([part.output.weight for part in parts], dim=1), whole.output.weight)
    queries = [part.qkv.weight[:128] for part in parts]
    assert torch.equal(torch.cat(queries), whole.qkv.weight[:256])


def test_llama3_frequencies__of_a_tensor__are_those_of_its_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    plain = {"rope_theta": 5e5, "max_position_embeddings": 512}
    given = RopeConfig.from_config("m", {**plain, "rope_scaling": scaling})
    unscaled = RopeConfig.from_config("m", plain)
    factors = inverse_frequencies(unscaled, 64)[0] / inverse_frequencies(given, 64)[0]
    write_random_checkpoint(tmp_path / "plain", shape_of("llama", rope_theta=5e5, max_position_embeddings=512), seed=3)
    write_gguf(tmp_path / "plain", tmp_path / "tiny.gguf", {}, extra={"rope_freqs.weight": factors})

    folder = resolve_checkpoint("m", str(tmp_path / "tiny.gguf"), None)

    read = RopeConfig.from_config("m", read_json("m", folder, "config.json"))
    np.testing.assert_allclose(rotary_table(read, 64, 512), rotary_table(given, 64, 512), atol=2e-4)


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope.scale_linear": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.factor": 1.0}, None),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0},
        ),
    ],
)
def test_rotary_scaling__however_the_file_says_it__is_llama_cpps(
    tmp_path: Path, fields: dict[str, object], scaling: dict[str, object] | None
) -> None:
    file = open_gguf("m", made(tmp_path, shape_of("llama"), {}))
    said = {f"llama.{key}": value for key, value in fields.items()}

    config = described_config("m", replace(file, fields={**file.fields, **said}))

    assert config.get("rope_scaling") == scaling


def test_rotary_scaling__with_a_factor_of_attention__is_refused(tmp_path: Path) -> None:
    file = open_gguf("m", made(tmp_path, shape_of("llama"), {}))

    with pytest.raises(ModelLoadError, match=r"llama\.rope\.scaling\.attn_factor"):
        described_config("m", replace(file, fields={**file.fields, "llama.rope.scaling.attn_factor": 1.2}))


def test_tokenizer__of_the_file__is_that_of_the_checkpoint(tmp_path: Path) -> None:
    file = made(tmp_path, shape_of("llama"), {})

    folder = resolve_checkpoint("m", str(file), None)

    ours, theirs = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in (folder, tmp_path / "plain"))
    text = "How does a language model work?<|im_end|> 42 naïve"
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)
    config = read_json("m", folder, "config.json")
    ends = json.loads((tmp_path / "plain" / "generation_config.json").read_text())["eos_token_id"]
    assert eos_token_ids("m", folder, config) == frozenset(ends)
    assert "message.content" in (folder / "chat_template.jinja").read_text()


def test_folder__of_a_file_that_changed__is_made_anew(tmp_path: Path) -> None:
    file = made(tmp_path, shape_of("llama"), {})
    first, files = resolve_checkpoint("m", str(file), None), files_of(str(file))
    assert resolve_checkpoint("m", str(file), None) == first

    write_gguf(tmp_path / "plain", file, {}, Kind.Q8_0)

    assert resolve_checkpoint("m", str(file), None) != first
    assert files_of(str(file)) != files


def split(folder: Path) -> list[Path]:
    write_random_checkpoint(folder / "plain", shape_of("llama"), seed=3)
    write_gguf(folder / "plain", folder / "tiny.gguf", {}, tensors_each=8)
    return sorted(folder.glob("tiny-*-of-*.gguf"))


@pytest.mark.parametrize("given", [0, 1])
def test_several_files__any_of_them_given__are_the_whole(tmp_path: Path, given: int) -> None:
    parts = split(tmp_path)
    assert len(parts) > 1
    write_gguf(tmp_path / "plain", tmp_path / "whole.gguf", {})

    of_parts, whole = (loaded(file, None, "float32") for file in (parts[given], tmp_path / "whole.gguf"))

    assert torch.equal(of_parts.embedding, whole.embedding)
    for part, layer in zip(of_parts.layers, whole.layers, strict=True):
        assert torch.equal(part.qkv.weight, layer.qkv.weight)
        assert torch.equal(part.output.weight, layer.output.weight)


def test_several_files__one_changed__are_read_anew(tmp_path: Path) -> None:
    parts = split(tmp_path)
    first, files = resolve_checkpoint("m", str(parts[0]), None), files_of(str(parts[0]))

    os.utime(parts[-1], ns=(1, 1))

    assert resolve_checkpoint("m", str(parts[0]), None) != first
    assert files_of(str(parts[0])) != files


def test_several_files__one_missing__is_named(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[1].unlink()

    with pytest.raises(ModelLoadError, match=r"tiny-00002-of-\d+\.gguf cannot be read: .*all files"):
        resolve_checkpoint("m", str(parts[0]), None)


def test_several_files__renamed__are_told_so(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[0].rename(tmp_path / "renamed.gguf")

    with pytest.raises(ModelLoadError, match=r"renamed\.gguf says that it is one of \d files, its name says 1"):
        resolve_checkpoint("m", str(tmp_path / "renamed.gguf"), None)


def test_truncated_file__is_named_with_its_tensor(tmp_path: Path) -> None:
    file = made(tmp_path, shape_of("llama"), {})
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 1000])

    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is not a complete GGUF file, tensor \S+ is not whole"):
        resolve_checkpoint("m", str(file), None)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no weights at all", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_what_is_no_gguf_file__is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(content)

    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is missing or not a complete GGUF file"):
        resolve_checkpoint("m", str(tmp_path / "tiny.gguf"), None)


def test_missing_file__is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.gguf cannot be read"):
        resolve_checkpoint("m", str(tmp_path / "gone.gguf"), None)


def test_other_architecture__is_refused_with_those_that_are_served(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "rwkv7")
    writer.add_block_count(2)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(ModelLoadError, match=r"general.architecture='rwkv7' is not supported; use one of llama, qwen2"):
        resolve_checkpoint("m", str(tmp_path / "tiny.gguf"), None)


def test_type_that_cannot_be_read__is_named_with_its_tensor(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "plain", shape_of("llama"), seed=3)
    write_gguf(
        tmp_path / "plain", tmp_path / "tiny.gguf", {}, extra={"blk.0.other.weight": np.zeros((32, 32), np.int8)}
    )

    with pytest.raises(ModelLoadError, match=r"tensor blk\.0\.other\.weight holds I8"):
        resolve_checkpoint("m", str(tmp_path / "tiny.gguf"), None)


def test_missing_tensor__is_named(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "plain", shape_of("llama"), seed=3)
    write_gguf(tmp_path / "plain", tmp_path / "tiny.gguf", {}, left_out="blk.0.attn_k.weight")

    with pytest.raises(ModelLoadError, match=r"tensor model\.layers\.0\.self_attn\.k_proj\.weight is missing"):
        loaded(tmp_path / "tiny.gguf", None, "float32")
