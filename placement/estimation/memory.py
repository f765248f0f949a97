"""The one definition of what a model needs on a unit, in bytes and in token blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placement.launch_limits import DEFAULT_LIMITS, LaunchLimits
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from profiler.adapter_sites import Site, padded_rank, projection_shapes
from profiler.families.registry import FAMILIES
from profiler.native_refusal import NativeDevice, native_refusal
from profiler.specs import ModelSpec

_CUBLAS_BYTES = 32 << 20  # that cuBLAS keeps for every stream that multiplied, on Hopper (8 MiB on most others)
CUBLAS_STREAMS = 19  # of both lanes on the whole GPU and on eight shares of it, and the default one
_CODE_BYTES = 416 << 20  # kernels of libraries, once they are loaded
LIBRARY_BYTES = CUBLAS_STREAMS * _CUBLAS_BYTES + _CODE_BYTES
_GRAPH_SHARE = 0.06  # of a GPU's memory, for captured decode graphs (MuxWise §4.5: 6.2 %)
_PARTITIONS = 6
_LOGIT_BYTES = 4  # sampling works in float32


def runs_on(spec: ModelSpec, num_gpus: int, native_on: NativeDevice | None) -> bool:
    """Returns whether such a unit runs it, whatever memory it has; `native_on` as in UnitCapacity."""
    return divides(spec, num_gpus) and (native_on is None or native_refusal(spec, native_on, num_gpus) is None)


def divides(spec: ModelSpec, num_gpus: int) -> bool:
    """Tensor parallelism divides the attention heads; KV heads are divided or repeated."""
    kv_heads = spec.num_kv_heads
    return spec.num_heads % num_gpus == 0 and (kv_heads % num_gpus == 0 or num_gpus % kv_heads == 0)


def workspace_bytes(
    spec: ModelSpec, num_gpus: int = 1, limits: LaunchLimits = DEFAULT_LIMITS, context_tokens: int | None = None
) -> int:
    """Live activations of the largest batch in the widest spot of a layer, and its logits, on all GPUs together. The
    residual stream is on each of them, the rest is divided. `context_tokens` are those of the longest sequence; None:
    what the checkpoint names.
    """
    gathered = num_gpus * _one_head_bytes(spec, context_tokens)
    widest = max(_mlp_bytes(spec, limits), _attention_bytes(spec, limits) + gathered)
    residual_and_normed = limits.batch_tokens * 2 * spec.hidden_size * num_gpus * spec.dtype_bytes
    return residual_and_normed + widest + limits.sequences * spec.vocab_size * _LOGIT_BYTES


def gathered_bytes(
    spec: ModelSpec, num_gpus: int = 1, limits: LaunchLimits = DEFAULT_LIMITS, context_tokens: int | None = None
) -> int:
    """Returns what one GPU may gather at a time of the K and V that a layer reads of cached prefixes, so that the
    workspace holds it beside the rest of attention: one KV head of the longest sequence at least.
    """
    beside_attention = (_mlp_bytes(spec, limits) - _attention_bytes(spec, limits)) // num_gpus
    return max(beside_attention, _one_head_bytes(spec, context_tokens))


def _mlp_bytes(spec: ModelSpec, limits: LaunchLimits) -> int:
    """Of gate, up and their product."""
    return limits.batch_tokens * 3 * spec.intermediate_size * spec.dtype_bytes


def _attention_bytes(spec: ModelSpec, limits: LaunchLimits) -> int:
    """Of queries, keys, values and answers, and of queries and answers once more as paged attention lays them."""
    return limits.batch_tokens * (4 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim * spec.dtype_bytes


def _one_head_bytes(spec: ModelSpec, context_tokens: int | None) -> int:
    return 2 * spec.context_tokens(context_tokens) * spec.head_dim * spec.dtype_bytes


def kept_prefill_bytes(models: Iterable[PlacementModel], limits: LaunchLimits = DEFAULT_LIMITS) -> int:
    """Returns what a GPU's launches keep beside the workspace of each model: the decode lane has one, too. Models that
    do not compute in the lanes' arenas keep what a prefill took on each partition.
    """
    return max((_kept_bytes(model, limits) for model in models), default=0)


def _kept_bytes(model: PlacementModel, limits: LaunchLimits) -> int:
    own_bytes = workspace_bytes(model.spec, 1, limits, model.max_model_len)
    return own_bytes * (1 if computes_in_arenas(model.spec) else _PARTITIONS)


def computes_in_arenas(spec: ModelSpec) -> bool:
    """Returns whether a GPU's lanes have one arena each for the model's intermediate values: dense models that this
    engine's own code runs, not quantised.
    """
    family = FAMILIES.get(spec.architecture)
    return family is not None and family.traits is not None and not spec.is_moe and spec.weights is None


def held_weight_bytes(spec: ModelSpec, num_gpus: int) -> int:
    """Returns what the GPUs of a unit hold of a model's weights together: each has the whole embedding."""
    return spec.weight_bytes + (num_gpus - 1) * spec.embedding_bytes


def resident_bytes(
    spec: ModelSpec, num_gpus: int = 1, limits: LaunchLimits = DEFAULT_LIMITS, context_tokens: int | None = None
) -> int:
    """Returns what a replica takes beside the KV pool, on all GPUs of its unit together. `context_tokens` as in
    workspace_bytes.
    """
    return held_weight_bytes(spec, num_gpus) + workspace_bytes(spec, num_gpus, limits, context_tokens)


def replica_bytes(model: PlacementModel, num_gpus: int, limits: LaunchLimits) -> int:
    """`resident_bytes` with the model's adapters. A GPU divides one of an adapter's two matrices and has the other one
    whole: both are counted on each, which is more than there is.
    """
    resident = resident_bytes(model.spec, num_gpus, limits, model.max_model_len)
    return resident + model.adapters_bytes * num_gpus


def resident_bytes_on(unit: UnitCapacity, model: PlacementModel) -> int:
    """Returns what a replica takes on this unit beside the KV pool, with its adapters."""
    return replica_bytes(model, unit.num_gpus, unit.launch_limits)


def fillable_bytes(device_bytes: int) -> int:
    """Returns what models and their KV may fill of a GPU: decode graphs and libraries take their part first."""
    return max(0, device_bytes - graph_bytes(device_bytes) - LIBRARY_BYTES)


def graph_bytes(device_bytes: int) -> int:
    """Returns what captured decode steps may take of a GPU."""
    return int(_GRAPH_SHARE * device_bytes)


def bytes_for_models(unit: UnitCapacity) -> int:
    """Memory of a unit beside its KV pool, all of it where the pool has no size yet; negative if the pool alone is too
    large.
    """
    return unit.memory_bytes if unit.sizes_pool else unit.memory_bytes - unit.total_blocks * unit.block_bytes


def pool_blocks_beside(unit: UnitCapacity, models_bytes: int) -> int:
    """Token blocks that the unit has beside models of so many resident bytes."""
    if not unit.sizes_pool:
        return unit.total_blocks
    return max(0, unit.memory_bytes - models_bytes) // unit.block_bytes


@dataclass(frozen=True, slots=True)
class KvRows:
    """A block holds K and V of one KV head in one layer, so the tokens of a sequence come in rows of layers x KV heads
    `blocks`.
    """

    tokens: int
    blocks: int

    def blocks_for(self, tokens: int) -> int:
        """Token blocks that hold so many tokens of one sequence.

        >>> KvRows(tokens=32, blocks=4 * 2).blocks_for(33)
        16
        """
        return -(-tokens // self.tokens) * self.blocks


def kv_rows(spec: ModelSpec, block_bytes: int, num_gpus: int = 1) -> KvRows | None:
    """None if not even one token's K and V fit a block. Where there are fewer KV heads than GPUs, each GPU holds one.

    >>> spec = ModelSpec(architecture="LlamaForCausalLM", num_layers=4, hidden_size=128, intermediate_size=256,
    ...     num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=512, max_position_embeddings=1024,
    ...     tie_word_embeddings=False, dtype="float32")
    >>> kv_rows(spec, block_bytes=8192)
    KvRows(tokens=32, blocks=8)
    """
    tokens = block_bytes // (2 * spec.head_dim * spec.dtype_bytes)
    return KvRows(tokens, spec.num_layers * max(spec.num_kv_heads, num_gpus)) if tokens else None


def holds_weights(unit: UnitCapacity, models: Iterable[PlacementModel]) -> bool:
    """Returns whether a unit's memory beside its KV pool holds these models."""
    needed = [resident_bytes_on(unit, model) for model in models if runs_on(model.spec, unit.num_gpus, unit.native_on)]
    return sum(needed) <= bytes_for_models(unit)


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
