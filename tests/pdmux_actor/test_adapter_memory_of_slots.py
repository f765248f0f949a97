"""What plans count for adapters is what their slots take."""

import json
from pathlib import Path

import pytest
import torch
from lora_adapters import SHAPES, random_adapter

from pdmux_actor.models.lora import AdapterSlots
from pdmux_actor.models.lora_checkpoint import read_adapter
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from placement.estimation.memory import AdapterShape, adapters_bytes
from profiler.specs import ModelSpec

SHAPE = CheckpointShape(
    model_type="llama", num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ["queries", "all"])
def test_slots__of_so_many_adapters__take_what_is_counted(tmp_path: Path, name: str, count: int) -> None:
    write_random_checkpoint(tmp_path / "base", SHAPE, seed=1)
    folder = random_adapter(tmp_path / "base", tmp_path / "adapter", SHAPES[name])
    spec = ModelSpec.from_config(json.loads((tmp_path / "base" / "config.json").read_text()), "float32")
    slots = AdapterSlots(spec, torch.zeros(1))
    adapter = read_adapter("x", str(folder), None, spec, torch.float32)
    for number in range(count):
        slots.load(f"x{number}", adapter)

    held = 0
    for stacks in slots._stacks:
        for layer in stacks.layers:
            held += sum(stack.a.nbytes + sum(b.nbytes for b in stack.b) for stack in layer.values())
    one = AdapterShape(rank=SHAPES[name].rank, projections=frozenset(SHAPES[name].modules))
    assert held == adapters_bytes(spec, [one] * count)
