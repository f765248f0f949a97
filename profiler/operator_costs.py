"""Computes what each operator of a model takes on a partition of a mesh: all that does not depend on the batch,
multiplied out.

Token-level, sequence-level and communication operators of DuetServe §4.1, where t = max(F / Pi, B / B_HBM). Measured
kernels differ in two ways. GEMMs compute whole tiles, so that 129 tokens cost what 256 do. And near the knee arithmetic
and traffic overlap less than fully: `smooth_max`, whose exponent is a figure of the device.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from profiler.latency import Floats
from profiler.operators import attention_flops, linear_bytes, linear_flops
from profiler.specs import DeviceSpec, ModelSpec

Amount = TypeVar("Amount", float, Floats)

# Two norms (each fused with its residual sum), four projections, rotary embedding, attention, activation.
DENSE_KERNELS_PER_LAYER = 9
# In place of two projections and the activation: router, top-k, alignment, two grouped GEMMs, activation, sum.
MOE_KERNELS_PER_LAYER = 13


def compute_rate(device: DeviceSpec, sms: int) -> float:
    """Pi(S) in FLOP/s."""
    assert 0 < sms <= device.num_sms, f"{sms} of {device.num_sms} SMs"
    return device.peak_flops_per_s * math.pow(sms / device.num_sms, device.compute_scaling_exponent)


def bandwidth(device: DeviceSpec, sms: int) -> float:
    """B(S) in bytes/s: saturates early. At a saturation share of 0.22 a fifth of the SMs draws 60 % (DuetServe Fig. 4).

    >>> from profiler.gpus.h100 import DEVICE as H100
    >>> round(bandwidth(H100, sms=26) / bandwidth(H100, sms=132), 2)
    0.6
    """
    assert 0 < sms <= device.num_sms, f"{sms} of {device.num_sms} SMs"
    tau = device.bandwidth_saturation_share
    return device.memory_bandwidth_bytes_per_s * math.expm1(-sms / device.num_sms / tau) / math.expm1(-1 / tau)


def smooth_max(a: Amount, b: Amount, p: float) -> Amount:
    """(a^p + b^p)^(1/p): max(a, b) if one is far larger; 2^(1/p) times it where they meet."""
    largest: Amount = (a**p + b**p) ** (1 / p)
    return largest


def _largest(a: Amount, b: Amount) -> Amount:
    if isinstance(a, float):
        return a if a > b else b
    largest: Amount = np.maximum(a, b)
    return largest


def whole_tiles(n: Amount, tile_tokens: int) -> Amount:
    """Rows that a GEMM computes for `n`: kernels for few tokens have tiles of fewer rows, the next power of two.

    >>> [whole_tiles(float(n), 128) for n in (1, 5, 64, 65, 129, 300)]
    [1.0, 8.0, 64.0, 128.0, 256.0, 384.0]
    """
    if isinstance(n, float):
        tile = min(tile_tokens, 1 << max(0, math.ceil(n) - 1).bit_length())
        return float(math.ceil(n / tile) * tile)
    tiles = np.minimum(tile_tokens, np.exp2(np.ceil(np.log2(np.maximum(n, 1.0)))))
    return np.ceil(n / tiles) * tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Holds a product's cost without the kernel's launch overhead."""

    compute_s_per_token: float
    weight_s: float
    traffic_s_per_token: float
    knee_exponent: float
    tile_tokens: int

    def seconds(self, n: Amount) -> Amount:
        compute_s = self.compute_s_per_token * whole_tiles(n, self.tile_tokens)
        return smooth_max(compute_s, self.traffic_s(n), self.knee_exponent)

    def traffic_s(self, n: Amount) -> Amount:
        """Returns what the bandwidth takes to move weights and tokens."""
        return self.weight_s + self.traffic_s_per_token * n


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsCost:
    """Both grouped GEMMs of a mixture of experts. Tokens are taken to choose their experts evenly: a batch of n then
    reads E (1 - (1 - k/E)^n) experts. Skewed routing reads fewer.
    """

    num_experts: int
    experts_per_token: int
    one_expert: LinearCost

    def seconds(self, n: Amount) -> Amount:
        rows, expert = self.experts_per_token * n, self.one_expert
        return smooth_max(expert.compute_s_per_token * rows, self.traffic_s(n), expert.knee_exponent)

    def traffic_s(self, n: Amount) -> Amount:
        """Returns what the bandwidth takes to move the weights of the experts that are chosen, and their tokens."""
        touched: Amount = self.num_experts * (1 - (1 - self.experts_per_token / self.num_experts) ** n)
        return self.one_expert.weight_s * touched + self.one_expert.traffic_s_per_token * self.experts_per_token * n


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCost:
    """One layer's attention over a whole batch, whose requests share the kernel. Without its launch overhead."""

    s_per_pair: float
    s_per_query: float
    s_per_key: float
    start_s: float
    padding_tokens: float
    masked_share: float
    fused_decode_tokens: float
    s_per_fused_sequence: float
    s_per_longest_key: float

    def prompt_pairs(self, q: Amount, c: Amount) -> Amount:
        """Pairs of a query and a key that it sees, and those that a prompt's kernel computes in vain beside them."""
        masked = self.masked_share * q * (q - 1) / 2
        return q * c + q * (q + 1) / 2 + masked + self.padding_tokens * (q + c) * (q > 1)

    def seconds(self, pairs: Amount, queries: Amount, keys: Amount) -> Amount:
        """Sums over requests: pairs, new tokens, cached plus new tokens. Of prompts alone or decodes alone."""
        work_s = self.work_s(self.s_per_pair * pairs, self.s_per_query * queries + self.s_per_key * keys)
        return work_s + self.start_s

    def with_prompts_s(
        self, pairs: Amount, queries: Amount, keys: Amount, *, longest_keys: Amount, decodes: Amount
    ) -> Amount:
        """The same of a batch that has prompts, among which `decodes` sequences decode. One block of threads goes
        through all keys of a request's tile, so that the batch takes no less than its longest request does.
        """
        work_s = self.work_s(self.s_per_pair * pairs, self.s_per_query * queries + self.s_per_key * keys)
        work_s = work_s + self.s_per_fused_sequence * decodes
        return _largest(work_s, self.s_per_longest_key * longest_keys) + self.start_s

    def work_s(self, compute_s: Amount, traffic_s: Amount) -> Amount:
        """`smooth_max` with the knee of attention kernels, 2, written out: it is asked a dozen times per decision."""
        joined_s: Amount = (compute_s * compute_s + traffic_s * traffic_s) ** 0.5
        return joined_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCosts:
    num_layers: int
    num_moe_layers: int
    qkv: LinearCost
    output: LinearCost
    gate_up: LinearCost
    down: LinearCost
    router: LinearCost | None
    experts: ExpertsCost | None
    classifier: LinearCost
    attention: AttentionCost
    elementwise_s_per_token: float  # of one layer
    overhead_s: float  # of all launches of one pass
    all_reduce_start_s: float
    all_reduce_s_per_token: float

    def all_reduce_s(self, n: Amount) -> Amount:
        return self.all_reduce_start_s + self.all_reduce_s_per_token * n

    def total_s(self, n: Amount, attention_s: Amount, sampled_rows: Amount) -> Amount:
        """t_total = L t_block + t_cls, for a batch that is not empty."""
        every_layer_s = (
            self.qkv.seconds(n)
            + self.output.seconds(n)
            + attention_s
            + self.elementwise_s_per_token * n
            + 2 * self.all_reduce_s(n)
        )
        total_s = self.num_layers * every_layer_s + self.classifier.seconds(sampled_rows) + self.overhead_s
        dense_layers = self.num_layers - self.num_moe_layers
        if dense_layers:
            total_s = total_s + dense_layers * (self.gate_up.seconds(n) + self.down.seconds(n))
        if self.router is not None and self.experts is not None:
            total_s = total_s + self.num_moe_layers * (self.router.seconds(n) + self.experts.seconds(n))
        return total_s


def operator_costs(spec: ModelSpec, device: DeviceSpec, num_gpus: int, sms: int) -> OperatorCosts:
    """Computes the costs of one GPU of a mesh of `num_gpus`, between which heads, MLP columns and vocabulary are
    divided.
    """
    flops_per_s, bytes_per_s = compute_rate(device, sms), bandwidth(device, sms)
    d, s, kept, of_experts = spec.hidden_size, spec.dtype_bytes, spec.weights_beside_experts, spec.weights
    q_dim = -(-spec.num_heads // num_gpus) * spec.head_dim
    kv_dim = spec.kv_heads_per_gpu(num_gpus) * spec.head_dim
    m, expert_m = -(-spec.intermediate_size // num_gpus), -(-spec.expert_intermediate_size // num_gpus)

    def linear(d_i: int, d_o: int, weights: str | None = None) -> LinearCost:
        s_w = s if weights is None else spec.weight_format_bytes
        weight_bytes = linear_bytes(0, d_i, d_o, s, s_w)
        return LinearCost(
            compute_s_per_token=linear_flops(1, d_i, d_o) / (flops_per_s * device.compute_share(weights)),
            weight_s=weight_bytes / bytes_per_s,
            traffic_s_per_token=(linear_bytes(1, d_i, d_o, s, s_w) - weight_bytes) / bytes_per_s,
            knee_exponent=device.knee_exponent,
            tile_tokens=device.gemm_tile_tokens,
        )

    dense_kernels = DENSE_KERNELS_PER_LAYER * (spec.num_layers - spec.num_moe_layers)
    kernels = dense_kernels + MOE_KERNELS_PER_LAYER * spec.num_moe_layers + 1
    # Read and written per token: two norms with residual (2 in, 2 out each), rotary embedding, gated activation.
    moe_share = spec.num_moe_layers / spec.num_layers
    activated = m * (1 - moe_share) + expert_m * spec.experts_per_token * moe_share
    elementwise_bytes = (2 * 4 * d + 2 * (q_dim + kv_dim) + 3 * activated) * s
    start_s, s_per_byte = _ring_all_reduce(device, num_gpus, flops_per_s)
    return OperatorCosts(
        num_layers=spec.num_layers,
        num_moe_layers=spec.num_moe_layers,
        qkv=linear(d, q_dim + 2 * kv_dim, kept),
        output=linear(q_dim, d, kept),
        gate_up=linear(d, 2 * m, kept),
        down=linear(m, d, kept),
        router=linear(d, spec.num_experts) if spec.is_moe else None,
        experts=ExpertsCost(
            num_experts=spec.num_experts,
            experts_per_token=spec.experts_per_token,
            one_expert=_one_expert(linear(d, 2 * expert_m, of_experts), linear(expert_m, d, of_experts)),
        )
        if spec.is_moe
        else None,
        classifier=linear(d, -(-spec.vocab_size // num_gpus)),
        attention=_attention(device, spec, flops_per_s, bytes_per_s, heads=q_dim // spec.head_dim, kv_dim=kv_dim),
        elementwise_s_per_token=elementwise_bytes / bytes_per_s,
        overhead_s=kernels * device.launch_overhead_s,
        all_reduce_start_s=start_s,
        all_reduce_s_per_token=s_per_byte * d * s,
    )


def _attention(
    device: DeviceSpec, spec: ModelSpec, flops_per_s: float, bytes_per_s: float, *, heads: int, kv_dim: int
) -> AttentionCost:
    """Of `heads` query heads and `kv_dim` columns of keys, and as many of values."""
    return AttentionCost(
        s_per_pair=attention_flops(1, 0, heads, spec.head_dim) / (flops_per_s * device.attention_compute_share),
        s_per_query=2 * heads * spec.head_dim * spec.dtype_bytes / bytes_per_s,
        s_per_key=2 * kv_dim * spec.dtype_bytes / (bytes_per_s * device.attention_bandwidth_share),
        start_s=device.attention_start_s,
        padding_tokens=device.attention_padding_tokens,
        masked_share=device.attention_masked_share,
        fused_decode_tokens=device.fused_decode_tokens,
        s_per_fused_sequence=heads * (device.fused_sequence_s * device.peak_flops_per_s / flops_per_s),
        s_per_longest_key=device.attention_longest_key_s,
    )


def _one_expert(gate_up: LinearCost, down: LinearCost) -> LinearCost:
    return LinearCost(
        compute_s_per_token=gate_up.compute_s_per_token + down.compute_s_per_token,
        weight_s=gate_up.weight_s + down.weight_s,
        traffic_s_per_token=gate_up.traffic_s_per_token + down.traffic_s_per_token,
        knee_exponent=gate_up.knee_exponent,
        tile_tokens=gate_up.tile_tokens,
    )


def _ring_all_reduce(device: DeviceSpec, num_gpus: int, flops_per_s: float) -> tuple[float, float]:
    """Start in seconds and seconds per byte of t = t_0 + 2 (N-1) alpha + 2 (N-1) B / (N B_link) + N (N-1) B / Pi."""
    if num_gpus == 1:
        return 0.0, 0.0
    assert device.link_bandwidth_bytes_per_s > 0, f"{device.name} has no links, so no mesh of {num_gpus}"
    rounds = 2 * (num_gpus - 1)
    start_s = device.all_reduce_start_s + rounds * device.link_latency_s
    link_bytes_per_s = device.link_bandwidth_bytes_per_s * math.pow(2 / num_gpus, device.link_sharing_exponent)
    transfer_s = rounds / (num_gpus * link_bytes_per_s)
    return start_s, transfer_s + num_gpus * (num_gpus - 1) / flops_per_s
