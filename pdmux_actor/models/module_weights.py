"""The weights of a model of transformers by name, apart from the modules that compute with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

_ELSEWHERE = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWeights:
    """Parameters and buffers; `config` is transformers' configuration, from which the modules are made again."""

    config: Any
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, layers: Sequence[nn.Module]) -> "ModuleWeights":
        """`model` without its layers, and these. A tied tensor is there once."""
        return cls(config=model.config, tensors={name: tensor for name, tensor, _, _ in _places(model, layers)})

    def mapped(self, of_tensor: Callable[[Tensor], Tensor]) -> "ModuleWeights":
        return replace(self, tensors={name: of_tensor(tensor) for name, tensor in self.tensors.items()})

    def fill(self, model: nn.Module, layers: Iterable[nn.Module]) -> None:
        """Puts the tensors into a model of the same configuration, which may be on the `meta` device."""
        for name, _, module, attribute in list(_places(model, layers)):
            if attribute in module._parameters:
                module._parameters[attribute] = nn.Parameter(self.tensors[name], requires_grad=False)
            else:
                module._buffers[attribute] = self.tensors[name]


def _places(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor, nn.Module, str]]:
    """Name, tensor, and where it is: an attribute of a module."""
    seen: set[int] = set()
    layers = tuple(layers)
    inner = {id(module) for layer in layers for module in layer.modules()}
    owners = [(_ELSEWHERE, model), *((f"layer {index}", layer) for index, layer in enumerate(layers))]
    for owner_name, owner in owners:
        for path, module in owner.named_modules():
            if owner is model and id(module) in inner:
                continue
            for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{owner_name}:{path}.{attribute}", tensor, module, attribute
