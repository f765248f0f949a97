"""Compares what a model of transformers answers when it runs layer by layer with its own answer, before it serves."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pdmux_actor.models.attention import PLAIN, AttentionTraits, chunk_attention
from pdmux_actor.models.transformers_attention import AttentionCalls, UnservableAttention
from pdmux_actor.models.transformers_decoder import TransformersDecoder

_PROMPT_TOKENS = 4  # then come two more, one by one
_NUM_TOKENS = 6
# Of the largest logit. Half precision rounds each layer's sums, in another order here than there.
_ROUNDED_TOLERANCE = 0.15
_TOLERANCE: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}


def example_tokens(vocab_size: int) -> Tensor:
    return torch.arange(5, 5 + 11 * _NUM_TOKENS, 11) % vocab_size


def check_against(
    decoder: TransformersDecoder, calls: AttentionCalls, tokens: Tensor, expected: Tensor, *, is_rounded: bool
) -> None:
    """Runs a prompt in two slices of layers, then single tokens. `is_rounded`: products round their inputs, so that
    differences in last bits may become larger.

    Raises:
        UnservableAttention: a layer does not call attention once, or the logits are others.
    """
    context = _OneSequence()
    ends = [_PROMPT_TOKENS, *range(_PROMPT_TOKENS + 1, len(tokens) + 1)]
    rows, first = [], 0
    for end in ends:
        positions = torch.arange(first, end, device=tokens.device)
        hidden, rotary = decoder.start(tokens[first:end], positions)
        for layer in range(decoder.spec.num_layers):
            hidden = decoder.forward_layers(hidden, rotary, context, layer, layer + 1)
            calls.leave(layer)
        rows.append(decoder.logits(hidden))
        first = end
    made = torch.cat(rows)
    difference = ((made - expected).abs().max() / expected.abs().max()).item()
    dtype = next(decoder.model.parameters()).dtype
    if not difference <= (_ROUNDED_TOLERANCE if is_rounded else _TOLERANCE[dtype]):  # NaN is no small number
        raise UnservableAttention(f"layer by layer its logits differ from its own forward's by {difference:.1e}")


class _OneSequence:
    """Implements models.decoder.Attention for one sequence, without a pool."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN
    ) -> Tensor:
        new = torch.stack((key, value), dim=2).transpose(0, 1)
        known = self._kept.get(layer)
        self._kept[layer] = new if known is None else torch.cat((known, new), dim=1)
        return chunk_attention(query, self._kept[layer], traits)
