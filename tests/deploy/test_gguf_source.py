"""A GGUF file as the source of a model: what a plan counts of it, and what a fleet file says of a bad one."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from huggingface_hub import constants

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import check_sources, parse_fleet_file
from pdmux_actor.executor.checkpoint_shape import read_shape
from router.text.encoder import load_encoder

FLEET = """
models:
  - {{id: tiny, source: {source}}}
pools:
  - {{name: cpu, device: cpu}}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))


def write_gguf(file: Path, kind: gguf.GGMLQuantizationType) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<end>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 3 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(np.zeros((64, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "weights", "dtype"),
    [("Q4_0", "int4_group32", "bfloat16"), ("Q8_0", "int8", "bfloat16"), ("F16", None, "float16")],
)
def test_gguf_source__is_planned_with_what_is_kept(tmp_path: Path, kind: str, weights: str | None, dtype: str) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, gguf.GGMLQuantizationType[kind])

    fleet = parse_fleet_file(FLEET.format(source="tiny.gguf"), name="fleet.yaml", base=tmp_path)
    check_sources(fleet)
    source = fleet.models[0].source
    spec = read_model_spec("tiny", source, None, None)

    assert (spec.weights, spec.dtype, spec.vocab_size, spec.num_kv_heads) == (weights, dtype, 4, 2)
    assert read_shape("tiny", source, None) == spec
    assert load_encoder(source, None).encode("abb", add_special_tokens=False) == [2, 1]


def test_gguf_source__is_broken__is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF, says its name")

    with pytest.raises(SourceNotFound, match=r"tiny\.gguf is missing or not a complete GGUF file"):
        read_model_spec("tiny", str(tmp_path / "tiny.gguf"), None, None)
