"""Unpacks a quantised checkpoint for a model of transformers, which is given plain weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pdmux_actor.models.quantised_weight import QuantisedWeight
from pdmux_actor.models.stored_formats.entry import StoredWeights
from pdmux_actor.models.tensor_reader import TensorReader


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedCheckpoint:
    """`tensors` by name, all plain; `kept` are the very levels of those weights that the engine keeps so."""

    tensors: Mapping[str, Tensor]
    kept: Mapping[str, QuantisedWeight]


def unpack_checkpoint(
    model: str, folder: Path, stored: StoredWeights, dtype: torch.dtype, weights: str | None
) -> UnpackedCheckpoint:
    """`weights` is ModelSpec's. Raises ModelLoadError: a file or tensor is missing or broken."""
    reader = TensorReader(model, folder, dtype=dtype, stored=stored)
    tensors, kept = dict[str, Tensor](), dict[str, QuantisedWeight]()
    for name, found in reader.all_tensors():
        if isinstance(found, Tensor):
            tensors[name] = found
            continue
        tensors[name] = torch.empty(found.shape, dtype=dtype)
        found.write_dense(tensors[name])
        levels = found.kept_as(weights, dtype)
        if levels is not None:
            kept[name] = levels
    return UnpackedCheckpoint(tensors=tensors, kept=kept)
