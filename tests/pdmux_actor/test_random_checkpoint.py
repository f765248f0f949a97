from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from pdmux_actor.models.checkpoint import read_json
from pdmux_actor.models.demo_tokenizer import build_demo_tokenizer
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from profiler.specs import ModelSpec

TOKENIZER = build_demo_tokenizer(640)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_demo_tokenizer__any_text__round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_demo_tokenizer__special_tokens__are_one_id_each_and_skipped() -> None:
    ids = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>").ids

    assert (ids[0], ids[-1]) == (1, 2)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "user\nhi"


def test_write_random_checkpoint__same_seed__same_bytes(tmp_path: Path) -> None:
    shape = DEMO_SHAPES["demo-llama"]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_checkpoint(tmp_path / name, shape, seed)

    first, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b", "c")
    )

    assert first == again
    assert first["tokenizer.json"] == other["tokenizer.json"]
    assert first["model.safetensors"] != other["model.safetensors"]


def test_demo_shapes__all__differ_in_every_dimension_that_matters(demo_checkpoints: Mapping[str, Path]) -> None:
    specs = [ModelSpec.from_config(read_json(name, folder, "config.json")) for name, folder in demo_checkpoints.items()]

    assert len({s.architecture for s in specs}) == len({s.num_layers for s in specs}) == 3
    assert len({s.num_heads for s in specs}) == len({s.hidden_size for s in specs}) == 3
    assert {s.head_dim for s in specs} == {32, 64}
    assert all(s.num_kv_heads < s.num_heads for s in specs)
    assert all(0.5e6 < s.num_params < 6e6 for s in specs)


@pytest.mark.parametrize("name", DEMO_SHAPES)
def test_chat_template__transformers__renders_turns(demo_checkpoints: Mapping[str, Path], name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_checkpoints[name])

    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Grüße 👋"}], tokenize=False, add_generation_prompt=True
    )

    assert text == "<|im_start|>user\nGrüße 👋<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == "user\nGrüße 👋\nassistant\n"
    assert np.max(tokenizer(text)["input_ids"]) < DEMO_SHAPES[name].vocab_size


def test_write_random_checkpoint__more_ids_than_its_tokenizer_makes__has_rows_for_all(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, replace(DEMO_SHAPES["demo-llama"], vocab_size=1000), seed=1)

    assert load_file(tmp_path / "model.safetensors")["lm_head.weight"].shape[0] == 1000
    assert read_json("m", tmp_path, "config.json")["vocab_size"] == 1000
    assert AutoTokenizer.from_pretrained(tmp_path).vocab_size < 1000
