"""Rounds the products in layers of transformers' modules to 8 or 4 bits, as plans count them."""

from collections.abc import Mapping, Sequence

from torch import nn

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.faster_modules import FixedLayoutLinear, PackedLinear
from pdmux_actor.models.linear import MakeProjection
from pdmux_actor.models.quantised_weight import QuantisedWeight
from profiler.specs import ModelSpec


def check_quantisable(model: str, spec: ModelSpec, layers: nn.ModuleList) -> None:
    """Raises ModelLoadError: a layer keeps weights in something else than a torch.nn.Linear, such as experts in one
    tensor; plans would count as rounded what is not.
    """
    for name, module in layers.named_modules():
        if type(module) is nn.Linear:
            continue
        for attribute, tensor in module._parameters.items():
            if tensor is not None and tensor.dim() > 1:
                named = f"{name}.{attribute}"
                raise ModelLoadError(
                    model=model,
                    reason=f"weights={spec.weights} cannot be had of {spec.architecture}, which runs by transformers' "
                    f"code: {named} of its layers is no product that is rounded",
                    remedy="set `weights: dtype`, or serve it in a pool with `backend: sglang`, if SGLang has it",
                )


def quantise(
    layers: Sequence[nn.Module], make_projection: MakeProjection, kept: Mapping[str, QuantisedWeight], prefix: str
) -> None:
    """One product after the other: beside them one is held in plain numbers. `kept` are weights whose levels a
    checkpoint has, by their names, which begin with `prefix` and the layer's number.
    """
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            if isinstance(module, PackedLinear):
                rounded = make_projection(kept.get(f"{prefix}.{index}.{name}.weight", module.weight), module.bias)
                assert isinstance(rounded, FixedLayoutLinear), "what is rounded is kept so"
                module.linear = rounded
