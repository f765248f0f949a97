"""Float32 logits for the tokens that half precision cannot tell from the best one."""

import torch
from torch import Tensor

from pdmux_actor.models.linear import Classifier

# The head's product is rounded to the dtype of the weights: an error of half a unit in the last place of each of
# the two logits compared, and as much again from inputs that were rounded after the norm.
_ROUNDINGS = 3
_MOST_TOKENS_PER_ROW = 64  # more of them are a model that prefers nothing: not worth a copy of the head


def sharpen_top_logits(logits: Tensor, normed: Tensor, head: Classifier) -> None:
    """Computes the logits near each row's best again, in float32, and writes them in place.

    bfloat16 tells logits of 20 apart by 0.125 at best, so greedy decoding took the wrong one of two close tokens. A
    head in float32 (vLLM's `head_dtype`) mends that too, and doubles what a step reads of the largest matrix; the few
    tokens that can be the best cost next to nothing.

    Args:
        logits: float32 [tokens, vocab_size], from a head in half precision.
        normed: float32 [tokens, hidden_size], what the head multiplies.
        head: Its weights, with plain rows.
    """
    best = logits.amax(dim=1, keepdim=True)
    margin = _ROUNDINGS * torch.finfo(head.dtype).eps * best.abs()
    rows, tokens = (logits >= best - margin).nonzero(as_tuple=True)
    if len(tokens) > _MOST_TOKENS_PER_ROW * len(logits):
        return
    logits[rows, tokens] = (normed.index_select(0, rows) * head.rows(tokens)).sum(dim=1)
