"""MuxServe's released cost model, rebuilt from its description: what the planner's benchmark scores plans with.

Its rules: 2 bytes and 7.6 GB per model against 54 % of a mesh for weights; KV gets 98 % of a mesh less weights and 6 GB
per model, shared by rate x KV bytes per token; at most four models to a mesh (30 % of SMs each of 120 %); prefill costs
256 tokens for every prompt; tpt_i = b_i / (sum_j t_p,j + 337 t_d,i); a scheduling overhead per sequence and step;
batches grow for the model with the lowest tpt / rate until rates are met or its KV share is full. Not rebuilt: the
profile that it reads (latencies here are our roofline of an A100), its rounding up to profiled batches, and its choice
of SM shares below 100 % (all solvers get full SMs).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import numpy.typing as npt
from planning.workloads import OUTPUT_TOKENS

from placement.estimation.problem_arrays import Estimator, UnitKind
from placement.estimation.step_costs import roofline_of
from placement.estimation.throughput import (
    BYTES,
    FLOOR,
    KV,
    KV_OWN,
    LARGEST_FACTOR,
    LOAD,
    NUM_SUMS,
    PREFILL,
    SLACK,
    Floats,
    KindCosts,
)
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from profiler.latency import ChunkShape
from profiler.specs import ModelSpec

GB = 1e9
_SM_PERCENT_PER_MODEL, _SM_BUDGET_PERCENT = 30, 120
_BALANCING_ROUNDS = 8
_DECODE_CONTEXTS = (32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class _Times:
    prefill_s: float
    decode_s: float
    decode_s_per_sequence: float


def _billions(spec: ModelSpec) -> float:
    return spec.num_params / 1e9


@cache
def _times(spec: ModelSpec, kind: UnitKind) -> _Times:
    assert kind.device is not None
    latency, sms = roofline_of(kind.device, kind.num_gpus), kind.device.num_sms
    single_s = float(np.mean([latency.decode_s(spec, (c,), sms) for c in _DECODE_CONTEXTS]))
    many_s = float(np.mean([latency.decode_s(spec, (c,) * 128, sms) for c in _DECODE_CONTEXTS]))
    overhead_s = (0.10 if spec.num_layers == 32 else 0.08 if spec.num_layers == 40 else 0.07) * 1e-3
    per_sequence_s = (many_s - single_s) / 127
    return _Times(
        prefill_s=latency.prefill_s(spec, (ChunkShape(256),) * 8, sms) / 8,
        decode_s=single_s - per_sequence_s,
        decode_s_per_sequence=per_sequence_s + overhead_s,
    )


class ReleaseCosts(KindCosts):
    """Decodes of the models of a mesh overlap without a price: a model's cycle is its own decode and all prefills."""

    def sums(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        rate = np.asarray(rate_per_s, dtype=np.float64)
        sums = np.zeros((*rate.shape, NUM_SUMS))
        tokens_per_s = rate * self.output_tokens[model]
        kv = tokens_per_s * self.blocks_per_sequence[model]  # bytes here
        sums[..., BYTES] = self.resident_bytes[model]
        sums[..., FLOOR] = _SM_PERCENT_PER_MODEL
        sums[..., PREFILL] = rate * self.prefill_s[model]
        sums[..., KV] = kv
        sums[..., KV_OWN] = kv * self.decode_s[model]
        sums[..., LOAD] = rate
        return sums

    def minima(self, model: int | npt.NDArray[np.intp], rate_per_s: float | Floats) -> Floats:
        rate = np.asarray(rate_per_s, dtype=np.float64)
        minima = np.zeros((*rate.shape, SLACK + 1))
        minima[..., 0] = -rate * self.output_tokens[model] * self.decode_s_per_sequence[model]
        return minima

    def factor(self, sums: Floats, minima: Floats) -> Floats:
        models = sums[..., FLOOR] / _SM_PERCENT_PER_MODEL
        kv_bytes = np.maximum(1.0, 78.4 * GB * self.num_gpus - sums[..., BYTES] + 1.6 * GB * models)
        busy = sums[..., PREFILL] - minima[..., 0]
        needed = sums[..., KV_OWN] + kv_bytes * busy
        return np.asarray(np.minimum(LARGEST_FACTOR, kv_bytes / np.maximum(needed, 1e-12)))


class ReleaseEstimator(Estimator):
    def costs(self, kinds: Sequence[UnitKind], models: Sequence[PlacementModel]) -> tuple[KindCosts, ...]:
        plain = super().costs(kinds, models)
        return tuple(_release_costs(kind, costs, models) for kind, costs in zip(kinds, plain, strict=True))


def _release_costs(kind: UnitKind, plain: KindCosts, models: Sequence[PlacementModel]) -> ReleaseCosts:
    times = [_times(m.spec, kind) for m in models]
    values = {field.name: getattr(plain, field.name) for field in fields(KindCosts) if field.init}
    one_way = np.ones(1)
    values |= {
        "memory_bytes": 0.54 * 80 * GB * kind.num_gpus,
        "pool_blocks": float(_SM_BUDGET_PERCENT),
        "resident_bytes": np.array([(2 * _billions(m.spec) + 7.6) * GB for m in models]),
        "prefill_s": np.array([t.prefill_s for t in times]),
        "decode_s": np.array([t.decode_s for t in times]),
        "decode_s_per_sequence": np.array([t.decode_s_per_sequence for t in times]),
        "blocks_per_sequence": np.array([_kv_bytes_per_sequence(m) for m in models]),
        "decode_dilation": one_way,
        "prefill_dilation": one_way,
        "decode_loss": one_way,
        "decode_sms": one_way,
        "slack_s": np.full((len(models), 1), 1e9),
    }
    return ReleaseCosts(**values)


def _kv_bytes_per_sequence(model: PlacementModel) -> float:
    return 4 * model.spec.num_layers * model.spec.hidden_size * (model.demand.prompt_tokens + OUTPUT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseScore:
    """`objective`: the mean of throughputs weighted by rate, as the release has it, but no model counts more than it is
    asked for.
    """

    objective: float
    served_share: float
    worst_share: float
    idle_gpus: int


def release_score(
    units: Sequence[UnitCapacity], plan: Plan, models: Sequence[PlacementModel], *, num_gpus: int
) -> ReleaseScore:
    by_name = {m.model: m for m in models}
    asked = {name: m.demand.rate_per_s for name, m in by_name.items()}
    held = {u.unit_id: [p.model for p in plan.models_of(u.unit_id)] for u in units}
    homes = {name: [u for u in held if name in held[u]] for name in by_name}
    load = {(u, name): asked[name] / len(homes[name]) for name in by_name for u in homes[name]}
    best: dict[str, float] = {}
    for _ in range(_BALANCING_ROUNDS):  # requests go where there is room, as the router sends them
        tpt = {}
        for unit in (u for u in units if held[u.unit_id]):
            names = held[unit.unit_id]
            rates = [load[unit.unit_id, m] for m in names]
            tpts = _mesh(unit, [by_name[m] for m in names], rates)
            tpt |= {(unit.unit_id, m): t for m, t in zip(names, tpts, strict=True)}
        served = {name: sum(min(load[u, name], tpt[u, name]) for u in homes[name]) for name in by_name}
        if sum(served.values()) > sum(best.values()):
            best = served
        pull = {key: load[key] * min(1.3, tpt[key] / load[key]) + 1e-9 for key in load}
        total = {name: sum(pull[u, name] for u in homes[name]) for name in by_name}
        load = {(u, name): asked[name] * pull[u, name] / total[name] for u, name in load}
    used = sum(u.num_gpus for u in units if held[u.unit_id])
    return ReleaseScore(
        objective=sum(best[m] * asked[m] for m in asked) / sum(asked.values()),
        served_share=sum(best.values()) / sum(asked.values()),
        worst_share=min(best[m] / asked[m] for m in asked),
        idle_gpus=num_gpus - used,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseScorer:
    num_gpus: int

    def score(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan) -> tuple[float, ...]:
        found = release_score(units, plan, models, num_gpus=self.num_gpus)
        return round(found.served_share, 3), round(found.worst_share, 2), found.idle_gpus


def _mesh(unit: UnitCapacity, models: Sequence[PlacementModel], rates: Sequence[float]) -> list[float]:
    """Throughputs at the batch sizes that the release's search ends with."""
    kind = UnitKind.of(unit)
    times = [_times(m.spec, kind) for m in models]
    kv_bytes = 78.4 * GB * unit.num_gpus - sum((2 * _billions(m.spec) + 6) * GB for m in models)
    weights = [rate * m.spec.kv_bytes_per_token for m, rate in zip(models, rates, strict=True)]
    caps = [
        max(0, int(kv_bytes * weight / sum(weights) / _kv_bytes_per_sequence(m)))
        for m, weight in zip(models, weights, strict=True)
    ]
    batches = [min(1, cap) for cap in caps]
    while True:
        prefill_s = sum(b * t.prefill_s for b, t in zip(batches, times, strict=True))
        tpts = [
            b / (prefill_s + OUTPUT_TOKENS * (t.decode_s + b * t.decode_s_per_sequence)) if b else 0.0
            for b, t in zip(batches, times, strict=True)
        ]
        wanting = [i for i in range(len(models)) if tpts[i] < rates[i] and batches[i] < caps[i]]
        if not wanting:
            return tpts
        lowest = min(wanting, key=lambda i: tpts[i] / rates[i])
        batches[lowest] = min(caps[lowest], batches[lowest] + max(1, batches[lowest] // 16))
