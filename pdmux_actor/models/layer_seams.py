"""Takes a model of transformers apart at its layers, without knowing its code.

The module list that holds the layers is filled with seams. The model's own forward then runs to its end, through its
embedding, masks, rotary embeddings, final norm and head, and around its layers: a seam notes what its layer is called
with, and hands on hidden states as they are. The layers themselves are called afterwards, a slice at a time, with what
was noted.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_HIDDEN = "hidden_states"


@dataclass(frozen=True, slots=True)
class LayerCall:
    """Holds what a layer is called with beside its hidden states, [1, tokens, hidden_size]."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(slots=True)
class Passage:
    """One run of the model's forward around its layers. `leaving`: what the last one made; None: what entered them."""

    leaving: Tensor | None = None
    entering: Tensor | None = None
    calls: list[LayerCall] = field(default_factory=list)


class LayerSeams:
    """Stands in `holder` for `layers`; each thread has its own passage."""

    def __init__(self, holder: nn.ModuleList, returns: Sequence[int | None]) -> None:
        """`returns[i]`: how long a tuple layer i returns; None: it returns the hidden states themselves."""
        self.layers: tuple[nn.Module, ...] = tuple(holder)
        self._local = threading.local()
        for index, layer in enumerate(self.layers):
            holder[index] = _Seam(self, index, layer, returns[index])

    @contextmanager
    def passage(self, leaving: Tensor | None = None) -> Iterator[Passage]:
        self._local.passage = passage = Passage(leaving)
        try:
            yield passage
        finally:
            del self._local.passage

    def pass_by(self, index: int, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        passage: Passage = self._local.passage
        assert index == len(passage.calls), f"layer {index} is called out of turn"
        hidden: Tensor = keywords.pop(_HIDDEN) if _HIDDEN in keywords else positional[0]
        passage.calls.append(LayerCall(positional[1:], keywords))
        if passage.entering is None:
            passage.entering = hidden
        is_last = index == len(self.layers) - 1
        return passage.leaving if is_last and passage.leaving is not None else hidden


class _Seam(nn.Module):
    """Answers for attributes of its layer, which models ask for (`attention_type`)."""

    def __init__(self, seams: LayerSeams, index: int, layer: nn.Module, returned: int | None) -> None:
        super().__init__()
        # Not registered as a submodule: the layer is no part of what the model's own forward runs.
        self.__dict__["_served"] = (seams, index, layer, returned)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the layer has
        return getattr(self.__dict__["_served"][2], name)

    def forward(self, *positional: Any, **keywords: Any) -> Any:  # noqa: ANN401 - as its layer is called
        seams, index, _, returned = self.__dict__["_served"]
        hidden = seams.pass_by(index, positional, keywords)
        return hidden if returned is None else (hidden, *[None] * (returned - 1))


def called(layer: nn.Module, hidden: Tensor, call: LayerCall) -> Tensor:
    """Hidden states after the layer."""
    made = layer(hidden, *call.positional, **call.keywords)
    made = made if isinstance(made, torch.Tensor) else made[0]
    assert isinstance(made, torch.Tensor)
    return made


def run_behind(model: Any, seams: LayerSeams, states: Tensor) -> Any:  # noqa: ANN401 - transformers has no types
    """Returns what the forward of `model` makes of hidden states after the last layer, [1, tokens, hidden_size]."""
    places = torch.arange(states.shape[1], device=states.device)[None]
    with seams.passage(states):  # of its tokens only the number matters: these states take the place of theirs
        return model(input_ids=torch.zeros_like(places), position_ids=places, use_cache=False)
