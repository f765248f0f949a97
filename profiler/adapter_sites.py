"""Says where LoRA adapters change a decoder, and with matrices of which sizes."""

from collections.abc import Mapping
from enum import Enum

from profiler.specs import ModelSpec

_RANK_STEP = 8


class Site(Enum):
    """Names where a layer's adapters come in: the parts of one of its projections, which are stacked as its weights."""

    QKV = ("q_proj", "k_proj", "v_proj")
    OUTPUT = ("o_proj",)
    GATE_UP = ("gate_proj", "up_proj")
    DOWN = ("down_proj",)


def projection_shapes(spec: ModelSpec) -> Mapping[str, tuple[int, int]]:
    """Returns [out, in] of the projections that an adapter can change: of a mixture of experts, those of attention."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = {
        "q_proj": (heads, hidden),
        "k_proj": (kv_heads, hidden),
        "v_proj": (kv_heads, hidden),
        "o_proj": (hidden, heads),
    }
    if spec.is_moe:
        return attention
    return {
        **attention,
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def padded_rank(rank: int) -> int:
    """Returns the rank that matrices are kept with: adapters of like ranks share their stacks."""
    return -(-rank // _RANK_STEP) * _RANK_STEP
