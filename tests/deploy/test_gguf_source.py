"""A GGUF file as the source of a model: what a plan counts of it, and what a fleet file says of a bad one."""

from pathlib import Path

import gguf
import pytest
from huggingface_hub import constants
from tiny_gguf import write_tiny_gguf

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.one_model import fleet_of_model
from deploy.fleet_file.settings import check_sources, parse_fleet_file
from pdmux_actor.executor.checkpoint_shape import read_shape
from router.text.encoder import load_encoder
from router.text.shared_tokenizers import SharedTokenizers

FLEET = """
models:
  - {{id: tiny, source: {source}}}
pools:
  - {{name: cpu, device: cpu}}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("kind", "weights", "dtype"),
    [("Q4_0", "int4_group32", "bfloat16"), ("Q8_0", "int8", "bfloat16"), ("F16", None, "float16")],
)
def test_gguf_source__is_planned_with_what_is_kept(tmp_path: Path, kind: str, weights: str | None, dtype: str) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, gguf.GGMLQuantizationType[kind])

    fleet = parse_fleet_file(FLEET.format(source="tiny.gguf"), name="fleet.yaml", base=tmp_path)
    check_sources(fleet)
    source = fleet.models[0].source
    spec = read_model_spec("tiny", source, None, None)

    assert (spec.weights, spec.dtype, spec.vocab_size, spec.num_kv_heads) == (weights, dtype, 4, 2)
    assert read_shape("tiny", source, None) == spec
    assert load_encoder(source, None, SharedTokenizers()).encode("abb", add_special_tokens=False) == [2, 1]


def test_gguf_source__is_broken__is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF, says its name")

    with pytest.raises(SourceNotFound, match=r"tiny\.gguf is missing or not a complete GGUF file"):
        read_model_spec("tiny", str(tmp_path / "tiny.gguf"), None, None)


@pytest.mark.parametrize("source", ["tiny.gguf", "models/tiny.gguf"])
def test_gguf_source__of_no_file__is_told_before_anything_starts(tmp_path: Path, source: str) -> None:
    fleet = parse_fleet_file(FLEET.format(source=source), name="fleet.yaml", base=tmp_path)

    with pytest.raises(SourceNotFound, match=r"there is no such file; write org/name/NAME\.gguf"):
        check_sources(fleet)
    with pytest.raises(SourceNotFound, match=r"there is no such file; write org/name/NAME\.gguf"):
        read_model_spec("tiny", source, None, None)


@pytest.mark.parametrize(
    ("given", "model"),
    [("org/Llama-3-GGUF:Q4_K_M", "Llama-3-GGUF"), ("org/all/q8/llama 3.Q8_0.gguf", "llama-3.Q8_0"), ("./a.gguf", "a")],
)
def test_up__gguf_model_instead_of_a_fleet_file__is_a_fleet_of_it(tmp_path: Path, given: str, model: str) -> None:
    text = fleet_of_model(given)
    assert text is not None

    fleet = parse_fleet_file(text, name=given, base=tmp_path)

    source = str(tmp_path / "a.gguf") if given.startswith(".") else given
    assert [(section.id, section.source) for section in fleet.models] == [(model, source)]
    assert [pool.device for pool in fleet.pools] == ["cpu"]


def test_up__anything_else__is_a_fleet_file() -> None:
    assert all(fleet_of_model(given) is None for given in ("fleet.yaml", "./org/fleet.json", "org/name"))
