"""Defines what a register of stored formats holds: how a quantised checkpoint keeps the weights of its products."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pdmux_actor.models.stored_levels import StoredLevels

Tensors = Mapping[str, Tensor]
"""The tensors of one product by what follows its module's name, for example `qweight`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """`name` is `quant_method` in config.json's `quantization_config`, which is what `check` and `unpack` are given.

    A product is stored so if the checkpoint has one of `markers` of its module; otherwise plainly. `check` raises
    profiler.errors.UnsupportedModel, its field without the `quantization_config.` before it. `unpack` raises KeyError
    for a tensor that is missing, ValueError for one that does not fit the others. `of_stacks`: it keeps stacks of
    experts, for native decoders; `tensors` then follow the name of the plain stack and a `_`.
    """

    name: str
    markers: frozenset[str]
    tensors: tuple[str, ...]
    check: Callable[[Mapping[str, Any]], None]
    unpack: Callable[[Tensors, Mapping[str, Any]], StoredLevels]
    of_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """The format of one checkpoint, with its `quantization_config`."""

    format: StoredFormat
    settings: Mapping[str, Any]

    def tensors_of(self, weight: str, present: Mapping[str, object]) -> dict[str, str]:
        """Returns the names of the tensors that keep `weight`, by what `unpack` calls them; of a plain one none."""
        module, _, kind = weight.rpartition(".")
        if kind != "weight" or not any(f"{module}.{marker}" in present for marker in self.format.markers):
            return {}
        names = {tensor: f"{module}.{tensor}" for tensor in self.format.tensors}
        return {tensor: name for tensor, name in names.items() if name in present}

    def weights(self, present: Iterable[str]) -> list[str]:
        """Returns the weights that are not stored plainly."""
        parts = [name.rpartition(".") for name in present]
        return sorted({f"{module}.weight" for module, _, kind in parts if kind in self.format.markers})

    def unpack(self, tensors: Tensors) -> StoredLevels:
        return self.format.unpack(tensors, self.settings)
