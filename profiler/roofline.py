"""DuetServe's attention-aware roofline: latency from shapes and two rates of the device (§4.1 of the paper).

Symbols: n tokens in the batch, d hidden size, m intermediate size, h_q and h_kv query and KV heads, d_h head size,
s bytes per element, q new tokens and c cached tokens of one request, Pi compute rate, B memory bandwidth.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec, ModelSpec

# Attention kernels reach less of the matrix rate than GEMMs: 150 of 231 TFLOP/s on A100, 450 of 745 on H100.
ATTENTION_COMPUTE_EFFICIENCY = 0.62
# Two norms (each fused with its residual sum), four projections, rotary embedding, attention, activation.
KERNELS_PER_LAYER = 9


def linear_flops(n: int, d_i: int, d_o: int) -> int:
    """F_lin = 2 n d_i d_o.

    >>> linear_flops(n=1, d_i=4096, d_o=4096)
    33554432
    """
    return 2 * n * d_i * d_o


def linear_bytes(n: int, d_i: int, d_o: int, s: int) -> int:
    """B_lin = n d_i s + d_i d_o s + n d_o s.

    >>> linear_bytes(n=1, d_i=4096, d_o=4096, s=2)
    33570816
    """
    return n * d_i * s + d_i * d_o * s + n * d_o * s


def attention_flops(q: int, c: int, h_q: int, d_h: int) -> int:
    """F_attn = (4 h_q d_h + 2 h_q) x (pairs of a query and a key it sees).

    The paper counts q (q + c) pairs; causal kernels skip the upper triangle, so here it is q c + q (q + 1) / 2. The two
    agree for decode (q = 1).

    >>> attention_flops(q=1, c=99, h_q=32, d_h=128) == 4 * 32 * 100 * 128 + 2 * 32 * 100
    True
    """
    pairs = q * c + q * (q + 1) // 2
    return (4 * h_q * d_h + 2 * h_q) * pairs


def attention_bytes(q: int, c: int, h_q: int, h_kv: int, d_h: int, s: int) -> int:
    """B_attn = 2 h_q q d_h s + 2 h_kv (q + c) d_h s: query and output, keys and values.

    >>> attention_bytes(q=1, c=99, h_q=32, h_kv=8, d_h=128, s=2)
    425984
    """
    return 2 * h_q * q * d_h * s + 2 * h_kv * (q + c) * d_h * s


@dataclass(frozen=True, slots=True)
class _Linear:
    """Seconds of a linear operator as max(compute_s_per_token n, weight_s + traffic_s_per_token n)."""

    compute_s_per_token: float
    weight_s: float
    traffic_s_per_token: float

    def seconds(self, n: int) -> float:
        return max(self.compute_s_per_token * n, self.weight_s + self.traffic_s_per_token * n)


@dataclass(frozen=True, slots=True)
class _Costs:
    """A model on a partition: everything that does not depend on the batch, multiplied out once."""

    num_layers: int
    linears: tuple[_Linear, ...]
    classifier: _Linear
    elementwise_s_per_token: float
    overhead_s: float  # of one layer
    attention_s_per_pair: float
    attention_s_per_query: float
    attention_s_per_key: float

    def attention_s(self, q: int, c: int) -> float:
        pairs = q * c + q * (q + 1) / 2
        return max(
            self.attention_s_per_pair * pairs, self.attention_s_per_query * q + self.attention_s_per_key * (q + c)
        )

    def decode_attention_s(self, context_tokens: Sequence[int]) -> float:
        """Sum over requests of `attention_s(1, c)`; compute and bytes both grow with c + 1, so one side often wins
        for every c, and then the sum needs no loop.
        """
        if self.attention_s_per_pair <= self.attention_s_per_key:
            keys = sum(context_tokens) + len(context_tokens)
            return self.attention_s_per_query * len(context_tokens) + self.attention_s_per_key * keys
        return sum(self.attention_s(1, c) for c in context_tokens)

    def total_s(self, n: int, attention_s: float, sampled_rows: int) -> float:
        """t_total = L t_block + t_cls."""
        block_s = self.elementwise_s_per_token * n + self.overhead_s + attention_s
        for linear in self.linears:
            block_s += linear.seconds(n)
        return self.num_layers * block_s + self.classifier.seconds(sampled_rows)


class RooflineLatency:
    """`profiler.latency.LatencyModel` without any profiling run. A batch without tokens takes no time.

    Known to be off: single-token GEMMs on large GPUs (no tile or wave effects), mixed batches (parts are summed, real
    fused kernels overlap them), and engines whose host cannot launch fast enough.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self._device = device
        self._costs: dict[tuple[ModelSpec, int], _Costs] = {}

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        n = len(context_tokens)
        if n == 0:
            return 0.0
        costs = self._costs_of(spec, sms)
        return costs.total_s(n, costs.decode_attention_s(context_tokens), sampled_rows=n)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        n = _new_tokens(chunks) + len(context_tokens)
        if n == 0:
            return 0.0
        costs = self._costs_of(spec, sms)
        attention_s = costs.decode_attention_s(context_tokens)
        for chunk in chunks:
            attention_s += costs.attention_s(chunk.new_tokens, chunk.context_tokens)
        return costs.total_s(n, attention_s, sampled_rows=len(chunks) + len(context_tokens))

    def _costs_of(self, spec: ModelSpec, sms: int) -> _Costs:
        key = (spec, sms)
        costs = self._costs.get(key)
        if costs is None:
            costs = self._costs[key] = _costs(
                spec, compute_rate(self._device, sms), bandwidth(self._device, sms), self._device.launch_overhead_s
            )
        return costs


def compute_rate(device: DeviceSpec, sms: int) -> float:
    """Pi(S) in FLOP/s."""
    assert 0 < sms <= device.num_sms, f"{sms} of {device.num_sms} SMs"
    return device.peak_flops_per_s * math.pow(sms / device.num_sms, device.compute_scaling_exponent)


def bandwidth(device: DeviceSpec, sms: int) -> float:
    """B(S) in bytes/s: saturates early. At a saturation share of 0.22 a fifth of the SMs draws 60 % (DuetServe Fig. 4).

    >>> from profiler.devices import H100
    >>> round(bandwidth(H100, sms=26) / bandwidth(H100, sms=132), 2)
    0.6
    """
    assert 0 < sms <= device.num_sms, f"{sms} of {device.num_sms} SMs"
    tau = device.bandwidth_saturation_share
    return device.memory_bandwidth_bytes_per_s * math.expm1(-sms / device.num_sms / tau) / math.expm1(-1 / tau)


def _new_tokens(chunks: Iterable[ChunkShape]) -> int:
    return sum(chunk.new_tokens for chunk in chunks)


def _costs(spec: ModelSpec, flops_per_s: float, bytes_per_s: float, launch_overhead_s: float) -> _Costs:
    d, m, s = spec.hidden_size, spec.intermediate_size, spec.dtype_bytes
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def linear(d_i: int, d_o: int) -> _Linear:
        weight_bytes = linear_bytes(0, d_i, d_o, s)
        return _Linear(
            compute_s_per_token=linear_flops(1, d_i, d_o) / flops_per_s,
            weight_s=weight_bytes / bytes_per_s,
            traffic_s_per_token=(linear_bytes(1, d_i, d_o, s) - weight_bytes) / bytes_per_s,
        )

    # Read and written per token: two norms with residual (2 in, 2 out each), rotary embedding, gated activation.
    elementwise_bytes = (2 * 4 * d + 2 * (q_dim + kv_dim) + 3 * m) * s
    attention_flops_per_s = flops_per_s * ATTENTION_COMPUTE_EFFICIENCY
    return _Costs(
        num_layers=spec.num_layers,
        linears=(linear(d, q_dim + 2 * kv_dim), linear(q_dim, d), linear(d, 2 * m), linear(m, d)),
        classifier=linear(d, spec.vocab_size),
        elementwise_s_per_token=elementwise_bytes / bytes_per_s,
        overhead_s=KERNELS_PER_LAYER * launch_overhead_s,
        attention_s_per_pair=attention_flops(1, 0, spec.num_heads, spec.head_dim) / attention_flops_per_s,
        attention_s_per_query=2 * q_dim * s / bytes_per_s,
        attention_s_per_key=2 * kv_dim * s / bytes_per_s,
    )
