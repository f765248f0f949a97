"""Any decoder of transformers, run by its own code over a packed batch of tokens, layer by layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdmux_actor.models.decoder import Attention
from pdmux_actor.models.layer_seams import LayerCall, LayerSeams, called, run_behind
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.rope import PromptPiece
from pdmux_actor.models.transformers_attention import AttentionCalls
from pdmux_actor.models.transformers_config import TransformersConfig
from profiler.native_refusal import CHANGES_SCORES


@dataclass(frozen=True, slots=True)
class BehindLayers:
    """Holds what a model of transformers computes behind its layers, so that its forward need not run again for it.
    Most have a norm and a head there, and nothing else; that is tried out, and so is what multiplies or caps logits.
    `norm` is called with what the layers made, `head` with what that makes. Both keep rows apart.
    """

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


class TransformersDecoder:
    """Implements LayeredDecoder. `model` is a causal LM of transformers whose layers `seams` took out."""

    def __init__(self, config: TransformersConfig, model: Any, seams: LayerSeams, calls: AttentionCalls) -> None:  # noqa: ANN401 - transformers has no types
        self.config = config
        self.spec = config.spec
        self.adapters = None  # they are added to the native decoder only
        self.model = model
        self.seams = seams
        self._calls = calls
        for layer in seams.layers:
            calls.bind(layer)
        self._behind = BehindLayers.of(model, seams, _some_states(model, config.spec.hidden_size))

    def beyond_flash(self, max_model_len: int) -> str | None:
        """Returns what its attention does that kernels for GPUs here do not; None: nothing, within that length."""
        if self._calls.changes_scores:
            return CHANGES_SCORES
        windows = [window for window in self._calls.windows.values() if window is not None]
        return f"its window of {min(windows)} tokens" if min(windows, default=max_model_len) < max_model_len else None

    @property
    def weights(self) -> ModuleWeights:
        return ModuleWeights.of(self.model, self.seams.layers)

    def start(
        self, token_ids: Tensor, positions: Tensor, prompts: Iterable[PromptPiece] = ()
    ) -> tuple[Tensor, Sequence[LayerCall]]:
        with self.seams.passage() as passage:
            self.model.base_model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        assert passage.entering is not None
        return passage.entering[0], passage.calls

    def forward_layers(
        self,
        hidden: Tensor,
        rotary: Sequence[LayerCall],
        attention: Attention,
        first_layer: int,
        last_layer: int,
        adapters: AdapterBatch | None = None,
    ) -> Tensor:
        assert adapters is None, "loading refuses adapters of such a base"
        states = hidden[None]
        for index in range(first_layer, last_layer):
            self._calls.enter(index, attention)
            states = called(self.seams.layers[index], states, rotary[index])
        return states[0]

    def final_states(self, hidden: Tensor) -> Tensor:
        if self._behind is not None:
            return self._behind.states(hidden).float()
        states: Tensor = run_behind(self.model.base_model, self.seams, hidden[None])[0]
        return states[0].float()

    def logits(self, hidden: Tensor) -> Tensor:
        if self._behind is not None:
            return self._behind.logits(hidden).float()
        logits: Tensor = run_behind(self.model, self.seams, hidden[None]).logits
        return logits[0].float()


def _some_states(model: Any, hidden_size: int) -> Tensor:  # noqa: ANN401 - as above
    weight = next(model.parameters())
    return torch.linspace(-2, 3, 2 * hidden_size, dtype=weight.dtype, device=weight.device).view(2, hidden_size)
