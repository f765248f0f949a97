"""The weights of a model of transformers by name, apart from the modules that compute with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pdmux_actor.models.faster_modules import FixedLayoutLinear, PackedLinear, Product
from pdmux_actor.models.linear import Linear, Projection

_ELSEWHERE = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWeights:
    """Parameters and buffers, and products: those whose weights oneDNN packs are laid out plainly one by one, others
    stay as they lie. `config` is transformers' configuration, from which the modules are made again.
    """

    config: Any
    tensors: Mapping[str, Tensor | Product]

    @classmethod
    def of(cls, model: nn.Module, layers: Sequence[nn.Module]) -> "ModuleWeights":
        """`model` without its layers, and these. A tied tensor is there once."""
        return cls(config=model.config, tensors={name: tensor for name, tensor, _, _ in _places(model, layers)})

    def mapped(
        self, of_tensor: Callable[[Tensor], Tensor], of_projection: Callable[[Projection], Projection]
    ) -> "ModuleWeights":
        def of(held: Tensor | Product) -> Tensor | Product:
            if isinstance(held, FixedLayoutLinear):
                projection = of_projection(held)
                assert isinstance(projection, FixedLayoutLinear), "its copy is one"
                return projection
            return of_tensor(held.weight if isinstance(held, Linear) else held)

        return replace(self, tensors={name: of(held) for name, held in self.tensors.items()})

    def fill(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        """Puts the tensors into a model of the same configuration, which may be on the `meta` device."""
        self._fill_products(model, layers)
        for name, _, module, attribute in list(_places(model, layers)):
            tensor = self.tensors[name]
            if isinstance(tensor, FixedLayoutLinear):
                continue
            assert isinstance(tensor, torch.Tensor), "weights that slept are plain"
            if attribute in module._parameters:
                module._parameters[attribute] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[attribute] = tensor

    def _fill_products(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        for owner_name, owner in _owners(model, layers):
            for path, module in list(owner.named_modules()):
                for child in list(module._modules):
                    held = self.tensors.get(f"{owner_name}:{path + '.' if path else ''}{child}.weight")
                    if isinstance(held, FixedLayoutLinear):
                        setattr(module, child, PackedLinear(held))


def _owners(model: nn.Module, layers: Iterable[nn.Module]) -> list[tuple[str, nn.Module]]:
    return [(_ELSEWHERE, model), *((f"layer {index}", layer) for index, layer in enumerate(layers))]


def _places(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor | Product, nn.Module, str]]:
    """Name, tensor, and where it is: an attribute of a module."""
    seen: set[int] = set()
    layers = tuple(layers)
    inner = {id(module) for layer in layers for module in layer.modules()}
    for owner_name, owner in _owners(model, layers):
        for path, module in owner.named_modules():
            if owner is model and id(module) in inner:
                continue
            held = module.held if isinstance(module, PackedLinear) else {**module._parameters, **module._buffers}
            for attribute, tensor in held.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{owner_name}:{path}.{attribute}", tensor, module, attribute
