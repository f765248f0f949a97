"""Counts the memory of LoRA adapters beside the model that they were trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.adapter_sites import Site, padded_rank, projection_shapes
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """`projections` are those that it changes; `rank` is the largest of any."""

    rank: int
    projections: frozenset[str]


def adapters_bytes(spec: ModelSpec, adapters: Sequence[AdapterShape]) -> int:
    """Returns what all take on one replica: stacks of slots for a power of two of adapters, each as large as the
    largest adapter and all sites together want it, and the stacks of half as many that these grew from.

    >>> spec = ModelSpec(architecture="LlamaForCausalLM", num_layers=32, hidden_size=4096, intermediate_size=14336,
    ...     num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=8192,
    ...     tie_word_embeddings=False, dtype="bfloat16")
    >>> one = AdapterShape(rank=16, projections=frozenset(projection_shapes(spec)))
    >>> [adapters_bytes(spec, [one] * count) >> 20 for count in (0, 1, 3, 32)]
    [0, 80, 480, 3840]
    """
    if not adapters:
        return 0
    slots = 1 << (len(adapters) - 1).bit_length()
    rank = padded_rank(max(a.rank for a in adapters))
    changed = frozenset().union(*(a.projections for a in adapters))
    shapes = projection_shapes(spec)
    sites = [site.value for site in Site if not changed.isdisjoint(site.value)]
    columns = sum(size_in + size_out for parts in sites for size_out, size_in in (shapes[part] for part in parts))
    return (slots + slots // 2) * spec.num_layers * rank * columns * spec.dtype_bytes
