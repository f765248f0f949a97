"""Predicts a step whose operators overlap: NanoFlow's nano-batches (OSDI'25, arXiv:2408.12757, §4).

A batch is cut into k nano-batches that run side by side: while the products of one compute, the attention of another
reads KV and an all-reduce of a third crosses the links. Each of them loads the weights again. Of one layer, in seconds
on all of the partition's SMs and summed over nano-batches,

    C  products, prompts' attention (compute)    M  attention of decodes, elementwise (memory)    N  all-reduces (links)

An operator of memory has a share r of the SMs and runs at P_m(r) of its speed; the products beside it at P_c(1 - r),
and beside an all-reduce, which has a share r_N, at P_c(1 - r_N). With t_M = M / P_m(r) and t_N = N a layer takes

    T(r) = max( C + t_M (1 - P_c(1 - r)) + t_N (1 - P_c(1 - r_N)),  t_M,  t_N,  B,  (C + t_M + t_N) / k )

B is the time in which the bandwidth moves all that is read and written, and the last term says that a nano-batch's own
operators come one after another. At r = 1 nothing overlaps: T = C + M + N.

As published: nano-batches of one size are cut evenly and r is the best of a few (the paper searches both offline, for
one batch size). Not from the paper: P_c and P_m, which it measured on an A100; here they are the device's own compute
and bandwidth by SMs (operator_costs.py). Not modelled: its asynchronous scheduling, KV in host memory, kernels' starts
(they are counted once, as without nano-batches).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from profiler.latency import ChunkShape
from profiler.operator_costs import OperatorCosts, bandwidth, compute_rate
from profiler.specs import DeviceSpec

_PARTS = 8  # shares tried: eighths of the SMs
_LINK_SHARE = 1 / 8  # r_N: rings of NCCL take 16 to 24 SMs of a hundred or so


class LayerWork(NamedTuple):
    """C, M, N and B of one layer."""

    compute_s: float
    memory_s: float
    network_s: float
    traffic_s: float


class Speeds(NamedTuple):
    """P_m(r), P_c(1 - r) and P_c(1 - r_N) for one r."""

    memory: float
    compute_beside: float
    compute_beside_links: float


def layer_s(work: LayerWork, speeds: Sequence[Speeds], nano_batches: int) -> float:
    """T(r) for the best r, and no longer than one operator after the other takes."""
    one_by_one_s = work.compute_s + work.memory_s + work.network_s
    return min([_overlapped_s(work, speed, nano_batches) for speed in speeds], default=one_by_one_s)


def _overlapped_s(work: LayerWork, speed: Speeds, nano_batches: int) -> float:
    memory_s, network_s = work.memory_s / speed.memory, work.network_s
    lost_s = memory_s * (1 - speed.compute_beside) + network_s * (1 - speed.compute_beside_links)
    chain_s = (work.compute_s + memory_s + network_s) / nano_batches
    return max(work.compute_s + lost_s, memory_s, network_s, work.traffic_s, chain_s)


def speeds_of(device: DeviceSpec, sms: int) -> Iterator[Speeds]:
    """Yields those of all shares of `sms` SMs that are tried."""
    beside_links = _compute(device, sms - max(1, round(sms * _LINK_SHARE)), sms)
    for given in sorted({max(1, round(sms * part / _PARTS)) for part in range(1, _PARTS + 1)}):
        yield Speeds(
            memory=bandwidth(device, given) / bandwidth(device, sms),
            compute_beside=_compute(device, sms - given, sms),
            compute_beside_links=beside_links,
        )


def _compute(device: DeviceSpec, given_sms: int, sms: int) -> float:
    return compute_rate(device, given_sms) / compute_rate(device, sms) if given_sms else 0.0


def overlapped_step_s(
    costs: OperatorCosts,
    device: DeviceSpec,
    chunks: Sequence[ChunkShape],
    context_tokens: Sequence[int],
    *,
    sms: int,
    nano_batches: int,
) -> float:
    """One step of all layers on `sms` SMs, of which `costs` are."""
    decodes = len(context_tokens)
    n = decodes + sum([chunk.new_tokens for chunk in chunks])
    if n == 0:
        return 0.0
    k = min(nano_batches, n)
    speeds = tuple(speeds_of(device, sms))
    prompts_s, reads_s = _attention_s(costs, chunks, context_tokens, k)
    memory_s = reads_s + costs.elementwise_s_per_token * n
    network_s = 2 * k * costs.all_reduce_s(n / k)

    def layers_s(mlp_s: float, mlp_traffic_s: float) -> float:
        projections = (costs.qkv, costs.output)
        products_s = k * sum([product.seconds(n / k) for product in projections]) + mlp_s
        traffic_s = k * sum([product.traffic_s(n / k) for product in projections]) + mlp_traffic_s
        work = LayerWork(products_s + prompts_s, memory_s, network_s, traffic_s + memory_s)
        return layer_s(work, speeds, k)

    total_s = costs.classifier.seconds(float(len(chunks) + decodes)) + costs.overhead_s
    dense_layers = costs.num_layers - costs.num_moe_layers
    if dense_layers:
        mlp = (costs.gate_up, costs.down)
        mlp_s = k * sum([product.seconds(n / k) for product in mlp])
        total_s += dense_layers * layers_s(mlp_s, k * sum([product.traffic_s(n / k) for product in mlp]))
    if costs.router is not None and costs.experts is not None:
        mlp_s = k * (costs.router.seconds(n / k) + costs.experts.seconds(n / k))
        mlp_traffic_s = k * (costs.router.traffic_s(n / k) + costs.experts.traffic_s(n / k))
        total_s += costs.num_moe_layers * layers_s(mlp_s, mlp_traffic_s)
    return total_s


def _attention_s(
    costs: OperatorCosts, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], k: int
) -> tuple[float, float]:
    """Seconds of a layer's attention: of prompts, and of decodes. They are kernels of their own, one a nano-batch."""
    attention, prompts_s, decodes_s = costs.attention, 0.0, 0.0
    more_starts_s = (k - 1) * attention.start_s
    if chunks:
        pairs = sum([attention.prompt_pairs(float(c.new_tokens), float(c.context_tokens)) for c in chunks])
        lengths = [float(c.new_tokens + c.context_tokens) for c in chunks]
        queries = float(sum([c.new_tokens for c in chunks]))
        prompts_s = more_starts_s + attention.with_prompts_s(
            pairs, queries, sum(lengths), longest_keys=max(lengths), decodes=0.0
        )
    if context_tokens:
        keys, queries = float(sum(context_tokens) + len(context_tokens)), float(len(context_tokens))
        decodes_s = more_starts_s + attention.seconds(keys, queries, keys)
    return prompts_s, decodes_s
