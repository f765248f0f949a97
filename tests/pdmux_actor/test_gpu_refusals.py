"""What CUDA pools refuse of models by transformers' code is what docs/models.md says of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.loading import load_decoder
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.transformers_decoder import TransformersDecoder
from profiler.families.entry import ModelFamily
from profiler.families.registry import all_families

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
CHANGING = [family for family in all_families().values() if family.changes_scores]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


def on_cuda() -> Mapping[str, str]:
    """By architecture, what the table says."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    heads = next(cells for cells in rows if cells[0] == "architecture")
    named = [dict(zip(heads, cells, strict=True)) for cells in rows if len(cells) == len(heads)]
    return {row["architecture"].strip("`"): row["CUDA"] for row in named}


def loaded(folder: Path, device: torch.device | None = None) -> LayeredDecoder:
    return load_decoder(
        ModelSource(model="m", source=str(folder)),
        block_bytes=8192,
        available_bytes=1 << 30,
        fastest_dtype=lambda spec: "float32",
        device=device,
    ).decoder


@pytest.mark.parametrize("family", CHANGING, ids=lambda family: family.model_type)
def test_family_that_changes_scores__on_a_gpu__is_refused_before_it_is_read(
    tmp_path: Path, family: ModelFamily
) -> None:
    write_tiny_checkpoint(tmp_path, family.model_type)
    (tmp_path / "model.safetensors").unlink()

    with pytest.raises(
        ModelLoadError, match=f"{family.name} is not served on a GPU: .*; serve it in a pool of CPUs, or"
    ):
        loaded(tmp_path, torch.device("cuda"))
    assert on_cuda()[family.name] in ("", "SGLang")


def test_family_with_windows__longer_than_them__is_beyond_the_kernels_of_gpus(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "gemma3_text")
    decoder = loaded(tmp_path)

    assert isinstance(decoder, TransformersDecoder)
    assert decoder.beyond_flash(41) == "its window of 40 tokens"
    assert decoder.beyond_flash(40) is None
    assert on_cuda()["Gemma3ForCausalLM"] == "transformers (within its window), SGLang"
