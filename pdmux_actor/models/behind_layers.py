"""Finds what a model of transformers computes behind its layers, so that its forward need not run again for it.

Most have a norm and a head there, and nothing else. That is tried out: what multiplies or caps logits is found so.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdmux_actor.models.layer_seams import LayerSeams, run_behind


@dataclass(frozen=True, slots=True)
class BehindLayers:
    """`norm` is called with what the layers made, `head` with what that makes. Both keep rows apart."""

    norm: nn.Module
    head: nn.Module

    @classmethod
    def of(cls, model: Any, seams: LayerSeams, hidden: Tensor) -> "BehindLayers | None":  # noqa: ANN401 - transformers has no types
        """`hidden` [tokens, hidden_size] is any. None: there is more, or something else, behind the layers."""
        states = hidden[None]
        norm, head = _called_with(model, seams, states), model.get_output_embeddings()
        if norm is None or not isinstance(head, nn.Module):
            return None
        found = cls(norm, head)
        normed, logits = run_behind(model.base_model, seams, states)[0], run_behind(model, seams, states).logits
        is_all = torch.equal(found.states(hidden), normed[0]) and torch.equal(found.logits(hidden), logits[0])
        return found if is_all else None

    def states(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden_size], of hidden states after the last layer."""
        states: Tensor = self.norm(hidden[None])
        return states[0]

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(hidden[None]))
        return logits[0]


def _called_with(model: nn.Module, seams: LayerSeams, states: Tensor) -> nn.Module | None:
    """The only module that is called with the hidden states that leave the layers."""
    found: list[nn.Module] = []

    def noted(module: nn.Module, inputs: tuple[object, ...]) -> None:
        if inputs and inputs[0] is states:
            found.append(module)

    inside = {id(module) for layer in seams.layers for module in layer.modules()}
    hooks = [m.register_forward_pre_hook(noted) for m in model.modules() if id(m) not in inside]
    try:
        run_behind(model, seams, states)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if len(found) == 1 else None
