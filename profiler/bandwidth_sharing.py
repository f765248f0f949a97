"""Predicts how much longer decode steps of several models take because they run at once on SMs of their own.

A part of the SMs is a step's own, the memory bandwidth is not. A step that alone on its SMs takes T and reads B bytes
demands the share u = B / (T W) of the bandwidth W; in the rest of T it starts kernels, waits for the host or computes.
Beside steps that demand v in sum it takes max(u + v, 1 + u v) times as long: together they read no faster than the
bandwidth allows, and below that what meets by chance (u v) waits. So two steps that only read gain nothing from each
other's company, and two that wait most of their time hardly notice it.
"""

from collections.abc import Sequence

from profiler.specs import DeviceSpec, ModelSpec


class DecodeReads:
    """Adds up the bytes that decode steps of a model read: every weight that their tokens pass, once, and the KV of
    their sequences.

    Tokens are taken to choose their experts evenly, as in operator_costs.ExpertsCost. What depends on the model alone
    is looked up once: schedulers ask at every step.
    """

    __slots__ = ("_embedding_bytes", "_expert_bytes", "_kv_bytes_per_token", "_weight_bytes", "spec")

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._weight_bytes = float(spec.weight_bytes)
        self._expert_bytes = spec.params_per_expert * spec.weight_format_bytes
        # Of the embedding a step reads a few rows.
        self._embedding_bytes = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size * spec.dtype_bytes
        self._kv_bytes_per_token = spec.kv_bytes_per_token

    def bytes(self, context_tokens: Sequence[int]) -> float:
        batch, spec, weight_bytes = len(context_tokens), self.spec, self._weight_bytes
        if batch == 0:
            return 0.0
        if spec.is_moe:
            untouched = (1 - spec.experts_per_token / spec.num_experts) ** batch
            experts = spec.num_moe_layers * spec.num_experts * untouched
            weight_bytes -= experts * self._expert_bytes
        weight_bytes -= self._embedding_bytes
        return weight_bytes + self._kv_bytes_per_token * float(sum(context_tokens))

    def demand(self, device: DeviceSpec, context_tokens: Sequence[int], step_s: float) -> float:
        """u, at most 1. Of a mesh, of which `device` is one GPU, an upper bound: its shards are not known here."""
        if step_s <= 0:
            return 0.0
        return min(1.0, self.bytes(context_tokens) / (step_s * device.memory_bandwidth_bytes_per_s))


class ReadsByModel:
    """Keeps the `DecodeReads` of models by name."""

    def __init__(self) -> None:
        self._reads: dict[str, DecodeReads] = {}

    def of(self, model: str, spec: ModelSpec) -> DecodeReads:
        reads = self._reads.get(model)
        if reads is None or reads.spec is not spec:  # it came back in another shape
            reads = self._reads[model] = DecodeReads(spec)
        return reads

    def forget(self, model: str) -> None:
        self._reads.pop(model, None)


def slowdown_beside(own: float, others: float) -> float:
    """Returns the slowdown of a step that demands `own` of the bandwidth beside such that demand `others` in sum.

    >>> [round(slowdown_beside(own, others), 2) for own, others in ((0.5, 0.0), (1.0, 1.0), (0.4, 0.4), (0.9, 0.01))]
    [1.0, 2.0, 1.16, 1.01]
    """
    return max(own + others, 1 + own * others)
