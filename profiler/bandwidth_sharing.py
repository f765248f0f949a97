"""Predicts how much longer decode steps of several models take because they run at once on SMs of their own.

A part of the SMs is a step's own, the memory bandwidth is not. A step that alone on its SMs takes T and reads B bytes
demands the share u = B / (T W) of the bandwidth W; in the rest of T it starts kernels, waits for the host or computes.
Beside steps that demand v in sum it takes max(u + v, 1 + u v) times as long: together they read no faster than the
bandwidth allows, and below that what meets by chance (u v) waits. So two steps that only read gain nothing from each
other's company, and two that wait most of their time hardly notice it.
"""

from collections.abc import Sequence

from profiler.specs import DeviceSpec, ModelSpec


def decode_bytes(spec: ModelSpec, context_tokens: Sequence[int]) -> float:
    """Returns the bytes that a decode step reads: every weight that its tokens pass, once, and the KV of its sequences.

    Tokens are taken to choose their experts evenly, as in operator_costs.ExpertsCost.
    """
    batch = len(context_tokens)
    if batch == 0:
        return 0.0
    weight_bytes = float(spec.weight_bytes)
    if spec.is_moe:
        untouched = (1 - spec.experts_per_token / spec.num_experts) ** batch
        experts = spec.num_moe_layers * spec.num_experts * untouched
        weight_bytes -= experts * spec.params_per_expert * spec.weight_format_bytes
    if not spec.tie_word_embeddings:  # of the embedding a step reads a few rows
        weight_bytes -= spec.vocab_size * spec.hidden_size * spec.dtype_bytes
    return weight_bytes + spec.kv_bytes_per_token * float(sum(context_tokens))


def bandwidth_demand(device: DeviceSpec, spec: ModelSpec, context_tokens: Sequence[int], step_s: float) -> float:
    """u, at most 1. Of a mesh, of which `device` is one GPU, an upper bound: its shards are not known here."""
    if step_s <= 0:
        return 0.0
    return min(1.0, decode_bytes(spec, context_tokens) / (step_s * device.memory_bandwidth_bytes_per_s))


def slowdown_beside(own: float, others: float) -> float:
    """Returns the slowdown of a step that demands `own` of the bandwidth beside such that demand `others` in sum.

    >>> [round(slowdown_beside(own, others), 2) for own, others in ((0.5, 0.0), (1.0, 1.0), (0.4, 0.4), (0.9, 0.01))]
    [1.0, 2.0, 1.16, 1.01]
    """
    return max(own + others, 1 + own * others)
