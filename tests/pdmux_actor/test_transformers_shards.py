"""Checkpoints of models by transformers' code that are not whole: the file and the tensor are named."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig
from safetensors.torch import load_file, save_file
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers, transformers_rig

from pdmux_actor.errors import ModelLoadError

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    with quiet_transformers(), transformers_rig() as rig:
        yield rig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """In several files."""
    write_tiny_checkpoint(tmp_path, "gemma").save_pretrained(tmp_path, max_shard_size="100KB")
    (tmp_path / "model.safetensors").unlink()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def test_shard__truncated__is_named_with_the_tensor_that_is_cut_off(rig: CpuRig, folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])

    with pytest.raises(
        ModelLoadError, match=rf"{shard.name} is missing or not a complete .*, tensor model\..* is not whole"
    ):
        rig.load("m", folder)


def test_shard__missing__is_named(rig: CpuRig, folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[2]
    shard.unlink()

    with pytest.raises(ModelLoadError, match=rf"{shard.name} is missing or not"):
        rig.load("m", folder)


@pytest.mark.parametrize("replacement", [None, torch.zeros(31)])
def test_tensor__missing_or_of_another_shape__is_named(
    rig: CpuRig, folder: Path, replacement: torch.Tensor | None
) -> None:
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        if tensors.pop(NORM, None) is not None:
            save_file({**tensors, **({} if replacement is None else {NORM: replacement})}, shard, {"format": "pt"})

    with pytest.raises(ModelLoadError, match=NORM.replace(".", r"\.")):
        rig.load("m", folder)
