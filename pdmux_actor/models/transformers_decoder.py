"""Any decoder of transformers, run by its own code over a packed batch of tokens, layer by layer."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.models.decoder import Attention
from pdmux_actor.models.layer_seams import LayerCall, LayerSeams, called
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.rope import PromptPiece
from pdmux_actor.models.transformers_attention import AttentionCalls
from pdmux_actor.models.transformers_config import TransformersConfig


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

    def beyond_flash(self, max_model_len: int) -> str | None:
        """Returns what its attention does that kernels for GPUs here do not; None: nothing, within that length."""
        if self._calls.changes_scores:
            return "it caps the scores of attention, or has sinks"
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
        with self.seams.passage(hidden[None]):
            made = self.model.base_model(**_anything(hidden), use_cache=False)
        states: Tensor = made[0]
        return states[0].float()

    def logits(self, hidden: Tensor) -> Tensor:
        with self.seams.passage(hidden[None]):
            made = self.model(**_anything(hidden), use_cache=False)
        logits: Tensor = made.logits
        return logits[0].float()


def _anything(hidden: Tensor) -> dict[str, Tensor]:
    """Tokens of which only the number matters: hidden states after the layers take the place of theirs."""
    places = torch.arange(len(hidden), device=hidden.device)[None]
    return {"input_ids": torch.zeros_like(places), "position_ids": places}
