"""A placement problem in arrays: models by index, kinds of units by index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from placement.demand import OWN_TARGETS
from placement.estimation.memory import bytes_for_models, kv_rows, replica_bytes, runs_on
from placement.estimation.quotas import least_tokens
from placement.estimation.step_costs import LatencyOf, Sharing, StepCosts, corrected, roofline_of, sharings, step_costs
from placement.estimation.throughput import Floats, KindCosts
from placement.launch_limits import LaunchLimits
from placement.neighbour_strain import Strains
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from placement.step_correction import StepCorrection
from profiler.latency import LatencyModel
from profiler.native_refusal import NativeDevice
from profiler.specs import DeviceSpec, ModelSpec

_ANY_LATENCY_S = 1e9
# Of a TTFT target, for what the estimate does not see: tokenising, the wire, the wait for the other lane.
_TTFT_PART = 0.9
_LITTLE_PER_S = 1e-6
_UNKNOWN_SPEED = StepCosts(prefill_s=0.0, batched_prefill_s=0.0, decode_s=0.0, decode_s_per_sequence=0.0)
_UNSHARED = (Sharing(decode_dilation=1.0, prefill_dilation=1.0, decode_loss=1.0, decode_sms=0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """Holds what the estimate of a fleet rests on. `contention`: how much longer decode takes beside prefill than its
    SMs alone explain. `max_running_sequences`: of one model on one unit; None: what its engine's launch limits
    say. `host_s`: what the host adds to every launch on a GPU, `cpu_host_s` on cores, `measured_host_s` on devices
    where that was measured.
    """

    latency_of: LatencyOf = roofline_of
    contention: float = 1.1
    max_running_sequences: int | None = None
    host_s: float = 0.5e-3  # plan a step, launch its graph, read what was sampled (MuxWise §3.2.2, DuetServe §4.3)
    cpu_host_s: float = 0.2e-3
    measured_host_s: Mapping[DeviceSpec, float] = field(default_factory=dict)

    def host_s_of(self, device: DeviceSpec | None) -> float:
        """Returns what the host adds to every launch; a device of unknown speed counts as a CPU."""
        measured_s = None if device is None else self.measured_host_s.get(device)
        if measured_s is not None:
            return measured_s
        return self.cpu_host_s if device is None or device.name.partition("-")[0] == "cpu" else self.host_s

    def costs(self, kinds: Sequence["UnitKind"], models: Sequence[PlacementModel]) -> tuple[KindCosts, ...]:
        """One per kind. Another cost model overrides this."""
        by_speed: dict[_SpeedKey, _Speed] = {}
        for kind in kinds:
            if _speed_key(kind) not in by_speed:
                by_speed[_speed_key(kind)] = _speed(kind, models, self)
        return tuple(_kind_costs(k, models, by_speed[_speed_key(k)], self) for k in kinds)


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Holds what makes two units interchangeable."""

    device: DeviceSpec | None
    num_gpus: int
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    sizes_pool: bool
    max_models: int | None
    launch_limits: LaunchLimits
    correction: StepCorrection
    native_on: NativeDevice | None

    @classmethod
    def of(cls, unit: UnitCapacity) -> "UnitKind":
        return cls(
            unit.device,
            unit.num_gpus,
            unit.memory_bytes,
            unit.block_bytes,
            unit.memory_bytes // unit.block_bytes if unit.sizes_pool else unit.total_blocks,
            unit.sizes_pool,
            unit.max_models,
            unit.launch_limits,
            unit.correction,
            unit.native_on,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """`models` are sorted by name; `costs` goes with `kinds`. `hopeless` models cannot meet their SLO on any of the
    kinds, however little they are asked for: their SLO binds nobody. `placeable` [models]: some kind holds it alone.
    `strained_models` lose to others, or others to them.
    """

    models: tuple[PlacementModel, ...]
    kinds: tuple[UnitKind, ...]
    costs: tuple[KindCosts, ...]
    index: Mapping[str, int]
    hopeless: frozenset[int]
    placeable: npt.NDArray[np.bool_]
    rates_per_s: Floats
    strains: Strains = field(default_factory=dict)
    strained_models: frozenset[int] = frozenset()

    def kind_of(self, unit: UnitCapacity) -> int:
        return self.kinds.index(UnitKind.of(unit))

    def openings(self, shapes: Sequence[tuple[int, UnitCapacity]]) -> tuple[tuple[int, int], ...]:
        """(pool, kind) of each (pool, unit)."""
        return tuple((pool, self.kind_of(unit)) for pool, unit in shapes)

    def orders(self) -> Sequence[Sequence[int]]:
        """Models, the largest first: by the part of a unit that their load takes, and by their weights."""
        models = range(len(self.models))
        if not self.costs:
            return [list(models)]
        load = self.work()
        size = np.max([c.resident_bytes for c in self.costs], axis=0)
        return (
            sorted(models, key=lambda m: (-load[m], m)),
            sorted(models, key=lambda m: (-size[m], -load[m], m)),
        )

    def work(self) -> Floats:
        """GPUs that a model's demand takes where it takes least, with batches full."""
        return np.asarray(self.rates_per_s * self._gpus_per_request())

    def cheapest_first(self) -> Sequence[int]:
        """Sorts models by the part of a unit that one request takes."""
        if not self.costs:
            return range(len(self.models))
        cost = self._gpus_per_request()
        return sorted(range(len(self.models)), key=lambda m: (cost[m], m))

    def _gpus_per_request(self) -> Floats:
        return np.asarray(
            np.min([c.num_gpus * (c.prefill_s + c.output_tokens * c.decode_s_per_sequence) for c in self.costs], axis=0)
        )


def make_instance(units: Sequence[UnitCapacity], models: Sequence[PlacementModel], estimator: Estimator) -> Instance:
    """`units` may repeat kinds."""
    ordered = tuple(sorted(models, key=lambda m: m.model))
    kinds = tuple(dict.fromkeys(UnitKind.of(u) for u in units))
    costs = estimator.costs(kinds, ordered)
    hopeless = _hopeless(costs, len(ordered))
    if any(ordered[m].demand.targets != OWN_TARGETS for m in hopeless):
        # What no unit can do, whoever asks for it, is not planned for; the model's own targets are.
        ordered = tuple(_with_own_targets(m) if i in hopeless else m for i, m in enumerate(ordered))
        costs = estimator.costs(kinds, ordered)
        hopeless = _hopeless(costs, len(ordered))
    if len(hopeless):
        costs = tuple(_of_any_latency(kind_costs, hopeless) for kind_costs in costs)
    strains = _strains(ordered)
    return Instance(
        models=ordered,
        kinds=kinds,
        costs=costs,
        index={m.model: i for i, m in enumerate(ordered)},
        hopeless=frozenset(int(i) for i in hopeless),
        placeable=_placeable(costs, len(ordered)),
        rates_per_s=np.array([m.demand.rate_per_s for m in ordered], dtype=np.float64),
        strains=strains,
        strained_models=frozenset(strains).union(*strains.values()),
    )


def _strains(models: Sequence[PlacementModel]) -> Strains:
    index = {m.model: i for i, m in enumerate(models)}
    found = {
        i: {index[s.neighbour]: s.target_part for s in m.strains if s.neighbour in index} for i, m in enumerate(models)
    }
    return {i: lost for i, lost in found.items() if lost}


def _with_own_targets(model: PlacementModel) -> PlacementModel:
    return replace(model, demand=replace(model.demand, targets=OWN_TARGETS))


def _hopeless(costs: Sequence[KindCosts], num_models: int) -> npt.NDArray[np.intp]:
    models, little = np.arange(num_models), np.full(num_models, _LITTLE_PER_S)
    factors = [np.where(c.runs, c.factor(c.sums(models, little), c.minima(models, little)), 0.0) for c in costs]
    return np.flatnonzero(np.all([f <= 0 for f in factors], axis=0)) if factors else models


def _of_any_latency(costs: KindCosts, models: npt.NDArray[np.intp]) -> KindCosts:
    tbt_s, slack_s = costs.tbt_s.copy(), costs.slack_s.copy()
    tbt_s[models], slack_s[models] = _ANY_LATENCY_S, _ANY_LATENCY_S
    return replace(costs, tbt_s=tbt_s, slack_s=slack_s)


def _placeable(costs: Sequence[KindCosts], num_models: int) -> npt.NDArray[np.bool_]:
    models, nothing = np.arange(num_models), np.zeros(num_models)
    held = [c.runs & c.holds(c.sums(models, nothing)) for c in costs]
    return np.any(held, axis=0) if held else np.zeros(num_models, dtype=np.bool_)


_SpeedKey = tuple[DeviceSpec | None, int, int, float, NativeDevice | None]


def _speed_key(kind: UnitKind) -> _SpeedKey:
    limits, contention = kind.launch_limits, kind.correction.contention
    return kind.device, kind.num_gpus, limits.batch_tokens, contention, kind.native_on


@dataclass(frozen=True, slots=True)
class _Speed:
    """Without the corrections of steps: units that differ in those alone share it."""

    costs: Sequence[StepCosts]
    ways: Sequence[Sharing]


def _speed(kind: UnitKind, models: Sequence[PlacementModel], estimator: Estimator) -> _Speed:
    if kind.device is None:
        return _Speed([_UNKNOWN_SPEED for _ in models], _UNSHARED)
    latency = estimator.latency_of(kind.device, kind.num_gpus)
    runs = [runs_on(m.spec, kind.num_gpus, kind.native_on) for m in models]
    runnable = [m for m, does in zip(models, runs, strict=True) if does]
    costs = [
        step_costs(
            m.spec,
            m.demand,
            latency,
            kind.device.num_sms,
            host_s=estimator.host_s_of(kind.device),
            batch_tokens=kind.launch_limits.batch_tokens,
        )
        if does
        else _UNKNOWN_SPEED
        for m, does in zip(models, runs, strict=True)
    ]
    contention = max(1.0, estimator.contention * kind.correction.contention)
    return _Speed(costs, _ways(kind.device, runnable, latency, contention))


def _ways(
    device: DeviceSpec, models: Sequence[PlacementModel], latency: LatencyModel, contention: float
) -> Sequence[Sharing]:
    """Each way with the worst of any model's dilations: a unit shares its SMs one way for all its models."""
    specs: list[ModelSpec] = list(dict.fromkeys(m.spec for m in models))
    if not specs:
        return _UNSHARED
    of_specs = [sharings(device, spec, latency, contention=contention) for spec in specs]
    return tuple(
        Sharing(
            decode_dilation=max(s.decode_dilation for s in same),
            prefill_dilation=max(s.prefill_dilation for s in same),
            decode_loss=max(s.decode_loss for s in same),
            decode_sms=same[0].decode_sms,
        )
        for same in zip(*of_specs, strict=True)
    )


def _kind_costs(kind: UnitKind, models: Sequence[PlacementModel], speed: _Speed, estimator: Estimator) -> KindCosts:
    def column(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)

    memory, targets = [_Memory.of(m, kind) for m in models], [m.target for m in models]
    steps = [corrected(c, kind.correction, m.correction) for c, m in zip(speed.costs, models, strict=True)]
    prefill_dilation = column([w.prefill_dilation for w in speed.ways])
    single_prefill_s = column([c.prefill_s for c in steps])
    ttft_s = column([_TTFT_PART * t.ttft_s if t else _ANY_LATENCY_S for t in targets])
    return KindCosts(
        num_gpus=kind.num_gpus,
        memory_bytes=float(bytes_for_models(_as_unit(kind))),
        pool_blocks=float(kind.total_blocks),
        blocks_per_byte=1.0 / kind.block_bytes if kind.sizes_pool else 0.0,
        max_running=float(estimator.max_running_sequences or kind.launch_limits.sequences),
        max_models=np.inf if kind.max_models is None else float(kind.max_models),
        runs=np.array([m is not None for m in memory], dtype=np.bool_),
        resident_bytes=column([m.resident_bytes if m else 0 for m in memory]),
        floor_blocks=column([m.floor_blocks if m else 0 for m in memory]),
        prefill_s=column([c.batched_prefill_s for c in steps]),
        decode_s=column([c.decode_s for c in steps]),
        decode_s_per_sequence=column([c.decode_s_per_sequence for c in steps]),
        blocks_per_sequence=column([m.blocks_per_sequence if m else 0 for m in memory]),
        output_tokens=column([m.demand.output_tokens for m in models]),
        rates_per_s=column([m.demand.rate_per_s for m in models]),
        # Smoother than Poisson counts as Poisson: routing roughens it again.
        arrival_scv=column([max(1.0, m.demand.arrival_cv) ** 2 for m in models]),
        tbt_s=column([t.tbt_s if t else _ANY_LATENCY_S for t in targets]),
        slack_s=ttft_s[:, None] - single_prefill_s[:, None] * prefill_dilation[None, :],
        decode_dilation=column([w.decode_dilation for w in speed.ways]),
        prefill_dilation=prefill_dilation,
        decode_loss=column([w.decode_loss for w in speed.ways]),
        decode_sms=column([w.decode_sms for w in speed.ways]),
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    resident_bytes: int
    floor_blocks: int
    blocks_per_sequence: int

    @classmethod
    def of(cls, model: PlacementModel, kind: UnitKind) -> "_Memory | None":
        """None: the model does not run on such units, whatever they hold."""
        if not runs_on(model.spec, kind.num_gpus, kind.native_on):
            return None
        mean_tokens = round(model.demand.prompt_tokens + model.demand.output_tokens / 2)
        rows = kv_rows(model.spec, kind.block_bytes, kind.num_gpus)
        if rows is None:
            return None
        floor = rows.blocks_for(least_tokens(model.demand, model.max_model_len))
        mean = rows.blocks_for(max(1, mean_tokens))
        return cls(replica_bytes(model, kind.num_gpus, kind.launch_limits), floor, mean)


def _as_unit(kind: UnitKind) -> UnitCapacity:
    return UnitCapacity(
        unit_id="",
        num_gpus=kind.num_gpus,
        memory_bytes=kind.memory_bytes,
        block_bytes=kind.block_bytes,
        total_blocks=kind.total_blocks,
        sizes_pool=kind.sizes_pool,
    )
