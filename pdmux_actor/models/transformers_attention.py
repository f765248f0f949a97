"""Attention of transformers' models: a name in its AttentionInterface, resolved to the Attention of each launch.

Two names: under MODEL_CODE layers are given no mask, since the Attention of a launch knows what each token may see.
Under MASK_PROBE the mask that a layer is given tells the reach of its attention: the window is not always an argument.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdmux_actor.models.attention import AttentionTraits
from pdmux_actor.models.decoder import Attention

MODEL_CODE = "muxfleet"
MASK_PROBE = "muxfleet_mask_probe"
_CALLS = "muxfleet_calls"
_MEANT_FOR_OTHERS = frozenset({"dropout", "is_causal", "position_ids", "output_attentions", "use_cache"})
_UNLIMITED = 0


class UnservableAttention(Exception):
    """Says what a layer's attention does that the engine does not."""


class AttentionCalls:
    """Brings a model's calls of attention to the Attention of the launch that this thread runs.

    All layers have the same shape in the KV pool: the most KV heads and the widest head of all of them. Narrower heads
    are padded with zeros, fewer KV heads repeated, which changes no score and no sum.
    """

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._local = threading.local()
        self.windows: dict[int, int | None] = {}  # by layer
        self.changes_scores = False

    def bind(self, layer: nn.Module) -> None:
        for module in layer.modules():
            module.__dict__[_CALLS] = self

    def enter(self, index: int, attention: Attention) -> None:
        """Notes that what this thread computes from now on is layer `index`."""
        self._local.layer, self._local.attention, self._local.count = index, attention, 0

    def leave(self, index: int) -> None:
        """Raises UnservableAttention."""
        if self._local.count != 1:
            raise UnservableAttention(
                f"layer {index} calls transformers' AttentionInterface {self._local.count} times for a batch, not once"
            )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """query, key, value: [1, heads, tokens, head_dim]. Returns [1, tokens, heads, the value's head_dim]."""
        local = self._local
        local.count += 1
        if mask is not None:
            self.windows[local.layer] = _window(mask)
        traits = AttentionTraits(
            scale=scale if scale is not None else query.shape[-1] ** -0.5,
            window_tokens=self.windows.get(local.layer),
            softcap=softcap,
            sinks=sinks,
        )
        self.changes_scores |= not traits.is_fused
        num_tokens, value_dim = query.shape[2], value.shape[3]
        attended: Tensor = local.attention(local.layer, self._heads(query), self._kv(key), self._kv(value), traits)
        return attended.view(1, num_tokens, query.shape[1], -1)[..., :value_dim]

    def _heads(self, heads: Tensor) -> Tensor:
        """[1, heads, tokens, n] -> [tokens, heads, head_dim]."""
        missing = self._head_dim - heads.shape[3]
        if missing < 0:
            raise UnservableAttention(f"a head has {heads.shape[3]} dimensions, its config.json says {self._head_dim}")
        by_token = heads[0].transpose(0, 1)
        return functional.pad(by_token, (0, missing)) if missing else by_token

    def _kv(self, heads: Tensor) -> Tensor:
        repeats, rest = divmod(self._kv_heads, heads.shape[1])
        if rest:
            raise UnservableAttention(f"a layer has {heads.shape[1]} KV heads, another {self._kv_heads}")
        by_token = self._heads(heads)
        return by_token if repeats == 1 else by_token.repeat_interleave(repeats, dim=1)


def register_attention() -> None:
    """Makes the names known to transformers; again is as good as once."""
    from transformers import AttentionInterface, AttentionMaskInterface  # seconds to import

    AttentionInterface.register(MODEL_CODE, _attend)
    AttentionInterface.register(MASK_PROBE, _attend)
    AttentionMaskInterface.register(MASK_PROBE, _reach)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Implements an attention function of transformers. The window is what the mask says: some models name one here and
    build masks without it.
    """
    unknown = sorted(n for n, v in others.items() if v is not None and n not in _MEANT_FOR_OTHERS)
    if unknown:
        raise UnservableAttention(f"its attention takes {', '.join(unknown)}")
    calls: AttentionCalls | None = module.__dict__.get(_CALLS)
    if calls is None:
        raise UnservableAttention("it attends outside its layers")
    return calls.attend(query, key, value, attention_mask, scaling, softcap, s_aux), None


def _reach(
    *, mask_function: Callable[..., Any], local_size: int | None = None, use_vmap: bool = False, **_: object
) -> Tensor:
    """Implements a mask function of transformers: [1, 1, 1, 1], how many tokens a query sees, itself among them."""
    if use_vmap:
        raise UnservableAttention("its mask is not causal alone")
    if local_size is None:
        return torch.full((1, 1, 1, 1), _UNLIMITED)
    zero, one, last = (torch.tensor(position) for position in (0, 1, local_size))
    if local_size > 1 and not mask_function(zero, zero, last, one):
        raise UnservableAttention(f"it attends within chunks of {local_size} tokens")
    return torch.full((1, 1, 1, 1), local_size)


def _window(mask: Tensor) -> int | None:
    if mask.shape != (1, 1, 1, 1):
        raise UnservableAttention("it makes masks of its own")
    return int(mask) or None
