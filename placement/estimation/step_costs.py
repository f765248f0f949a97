"""Works out how long a model's work takes on a mesh, boiled down to the few numbers that the throughput estimate
needs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placement.demand import ModelDemand
from placement.step_correction import StepCorrection
from profiler.latency import ChunkShape, LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec

LatencyOf = Callable[[DeviceSpec, int], LatencyModel]
"""The latency model of so many GPUs as one tensor-parallel group."""

_BATCH_TOKENS = 2048  # of the prefill that ways to share are compared by
_LARGE_BATCH = 64
_SHARES = (0.25, 0.5, 0.75)  # of the SMs to decode, while a prefill runs beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Solo, on all SMs of the mesh. A decode step of b sequences of mean length takes
    `decode_s + b * decode_s_per_sequence`; a prompt takes `prefill_s` alone and `batched_prefill_s` in a full batch.
    """

    prefill_s: float
    batched_prefill_s: float
    decode_s: float
    decode_s_per_sequence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """One way to share the SMs: how much longer decode steps take while a prefill runs beside them, how much longer
    prefills take, and what share of decode's progress a running prefill costs. `decode_sms`: 0 where the two alternate.
    """

    decode_dilation: float
    prefill_dilation: float
    decode_loss: float
    decode_sms: int


ALTERNATING = Sharing(decode_dilation=1.0, prefill_dilation=2.0, decode_loss=1.0, decode_sms=0)
"""Slices of a prefill between decode rounds, each on all SMs."""


def roofline_of(device: DeviceSpec, num_gpus: int) -> LatencyModel:
    return RooflineLatency(device, num_gpus=num_gpus)


def step_costs(
    spec: ModelSpec, demand: ModelDemand, latency: LatencyModel, sms: int, *, host_s: float, batch_tokens: int
) -> StepCosts:
    """`batch_tokens` are those of a prefill batch under load."""
    prompt = max(1, round(demand.prompt_tokens))
    context = prompt + round(demand.output_tokens / 2)
    prompts = max(1, batch_tokens // prompt)
    single_s = latency.decode_s(spec, (context,), sms)
    large_s = latency.decode_s(spec, (context,) * _LARGE_BATCH, sms)
    per_sequence_s = max(0.0, (large_s - single_s) / (_LARGE_BATCH - 1))
    return StepCosts(
        prefill_s=host_s + latency.prefill_s(spec, (ChunkShape(prompt),), sms),
        batched_prefill_s=(host_s + latency.prefill_s(spec, (ChunkShape(prompt),) * prompts, sms)) / prompts,
        decode_s=host_s + max(0.0, single_s - per_sequence_s),
        decode_s_per_sequence=per_sequence_s,
    )


def corrected(costs: StepCosts, *corrections: StepCorrection) -> StepCosts:
    """Returns what steps cost by what was measured of the unit and of the model."""
    prefill, decode = math.prod(c.prefill for c in corrections), math.prod(c.decode for c in corrections)
    return StepCosts(
        prefill_s=costs.prefill_s * prefill,
        batched_prefill_s=costs.batched_prefill_s * prefill,
        decode_s=costs.decode_s * decode,
        decode_s_per_sequence=costs.decode_s_per_sequence * decode,
    )


def sharings(device: DeviceSpec, spec: ModelSpec, latency: LatencyModel, *, contention: float) -> Sequence[Sharing]:
    """Ways to share the SMs of a device, by the step times of one model. `contention`: decode beside prefill takes so
    much longer than its SMs alone explain.
    """
    ways = [ALTERNATING]
    whole_decode_s = latency.decode_s(spec, (512,) * 16, device.num_sms)
    whole_prefill_s = latency.prefill_s(spec, (ChunkShape(_BATCH_TOKENS),), device.num_sms)
    grain = device.partition_granularity_sms
    taken = {max(grain, round(device.num_sms * share / grain) * grain) for share in _SHARES}
    for decode_sms in sorted(sms for sms in taken if sms < device.num_sms):
        decode = contention * latency.decode_s(spec, (512,) * 16, decode_sms) / whole_decode_s
        prefill_sms = device.num_sms - decode_sms
        prefill = latency.prefill_s(spec, (ChunkShape(_BATCH_TOKENS),), prefill_sms) / whole_prefill_s
        # While a prefill runs (prefill times its solo time), decode advances at 1 / decode of its speed.
        loss = max(0.0, (1 - 1 / decode) * prefill)
        ways.append(Sharing(decode_dilation=decode, prefill_dilation=prefill, decode_loss=loss, decode_sms=decode_sms))
    return tuple(ways)
