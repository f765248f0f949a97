"""Metrics that are read off when somebody asks: what units report, and what the ledger holds."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import LoadReport, ModelLoad, NeighbourLoss
from router.admission.block_ledger import QuotaLedger
from router.telemetry.fleet_event import EventKind
from router.view import FleetView, ModelLoadTimes


class UnitCollector:
    """The units' own figures, as of the newest view: units that left it leave the exposition too."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        units, models, aliases = _UnitFamilies(), _ModelFamilies(), _ModelServerAliases()
        for unit in self._view().units:
            unit_id, load = unit.report.unit_id, unit.report.load
            units.age.add_metric([unit_id], unit.age_s)
            loaded = () if load is None else load.models
            held = {status.model for status in unit.report.models} | {model.model for model in loaded}
            for model_name in held - {model.model for model in loaded}:
                models.start(unit_id, model_name)
                for other in held - {model_name}:
                    models.lose(unit_id, model_name, NeighbourLoss(neighbour=other, ttft_s=0.0, tbt_s=0.0))
            if load is None:
                units.start(unit_id)
                continue
            units.add(unit_id, load)
            for model in loaded:
                models.add(unit_id, model)
                aliases.add(unit_id, model)
        yield from units.families()
        yield from models.families()
        yield from aliases.families()


class FleetCollector:
    """Tells what the control loop counts, and how far models are, as of the newest view."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        events = CounterMetricFamily("muxfleet_fleet_events", "Events of the flight recorder", labels=["kind"])
        for kind in EventKind if view.models else ():  # before the first view nobody knows: a 0 would be a jump later
            events.add_metric([kind.value], view.events.get(kind.value, 0))
        replicas = _gauge("muxfleet_model_replicas", "Units that have a model in that phase", "model", "phase")
        phases = Counter((s.model, s.phase) for unit in view.units for s in unit.report.models)
        for model in sorted({card.model for card in view.models} | {model for model, _ in phases}):
            for phase in ModelPhase:
                replicas.add_metric([model, phase.value], phases[model, phase])
        loads = SummaryMetricFamily("muxfleet_model_load_seconds", "Loads of a model on a unit", labels=["model"])
        told = {load.model: load for load in view.load_times}
        for model in sorted({card.model for card in view.models} | told.keys()):
            load = told.get(model, ModelLoadTimes(model=model, loads=0, seconds=0.0))
            loads.add_metric([model], count_value=load.loads, sum_value=load.seconds)
        yield from (events, replicas, loads)


class LedgerCollector:
    """Blocks of this gateway replica's ledger."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "muxfleet_ledger_blocks", "Token blocks promised to requests, and what may be", labels=["model", "state"]
        )
        for model in tuple(self._ledger.models()):  # at once: this is another thread than the ledger's
            blocks.add_metric([model, "held"], self._ledger.held_blocks(model))
            blocks.add_metric([model, "capacity"], self._ledger.capacity_blocks(model) or 0)
        yield blocks


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


class _UnitFamilies:
    def __init__(self) -> None:
        self.age = _gauge("muxfleet_unit_report_age_seconds", "Age in the view", "unit")
        self._sms = _gauge("muxfleet_unit_sms", "SMs (cores on a CPU) per lane", "unit", "phase")
        self._partitioned = _gauge(
            "muxfleet_unit_partitioned", "1 if each lane has SMs of its own, 0 if lanes compete for all of them", "unit"
        )
        self._bubbles = _gauge(
            "muxfleet_lane_bubble_share", "Share of the last seconds a lane idled with work", "unit", "phase"
        )
        self._step = _gauge(
            "muxfleet_decode_step_seconds",
            "Mean decode step of the last seconds, predicted and achieved",
            "unit",
            "kind",
        )
        self._headroom = _gauge(
            "muxfleet_decode_headroom_ratio", "Share of the tightest TBT target that decode steps leave", "unit"
        )
        self._fairness = _gauge(
            "muxfleet_unit_fairness_gap", "Largest difference between models' used shares of their quotas", "unit"
        )
        self._guard = CounterMetricFamily(
            "muxfleet_guard_cells_moved", "Observations that changed the contention guard", labels=["unit"]
        )
        self._free = _gauge("muxfleet_unit_kv_blocks", "Token blocks of the pool", "unit", "state")

    def start(self, unit_id: str) -> None:
        """Starts the counters of a unit that has not reported its load yet: what it counts is there at 0, for
        `increase()`.
        """
        self._guard.add_metric([unit_id], 0)

    def add(self, unit_id: str, load: LoadReport) -> None:
        self._sms.add_metric([unit_id, "prefill"], load.prefill_sms)
        self._sms.add_metric([unit_id, "decode"], load.decode_sms)
        self._partitioned.add_metric([unit_id], 0 if load.unpartitioned_reason else 1)
        self._bubbles.add_metric([unit_id, "prefill"], load.prefill_bubble_share)
        self._bubbles.add_metric([unit_id, "decode"], load.decode_bubble_share)
        self._step.add_metric([unit_id, "predicted"], load.decode_predicted_s)
        self._step.add_metric([unit_id, "achieved"], load.decode_achieved_s)
        if load.decode_headroom is not None:
            self._headroom.add_metric([unit_id], load.decode_headroom)
        self._fairness.add_metric([unit_id], load.fairness_gap)
        self._guard.add_metric([unit_id], load.guard_cells_moved_total)
        self._free.add_metric([unit_id, "total"], load.total_blocks)
        self._free.add_metric([unit_id, "free"], load.free_blocks)
        self._free.add_metric([unit_id, "cached"], load.cached_blocks)

    def families(self) -> Iterator[Metric]:
        yield from (self.age, self._sms, self._partitioned, self._bubbles, self._step)
        yield from (self._headroom, self._fairness, self._guard, self._free)


class _ModelFamilies:
    def __init__(self) -> None:
        both = ("model", "unit")
        self._running = _gauge("muxfleet_num_requests_running", "Running", *both)
        self._waiting = _gauge("muxfleet_num_requests_waiting", "Waiting", *both)
        self._blocks = _gauge("muxfleet_kv_blocks", "Token blocks", *both, "state")
        self._hits = _gauge("muxfleet_prefix_hit_ratio", "Of the prompt tokens of the last seconds", *both)
        self._attained = _gauge(
            "muxfleet_unit_slo_attainment_ratio",
            "Of the last seconds: first tokens, gaps, whole requests within target",
            *both,
            "slo",
        )
        self._rate = _gauge("muxfleet_unit_tokens_per_second", "Of the last seconds", *both, "phase")
        self._preemptions = CounterMetricFamily("muxfleet_preemptions", "Sequences recomputed", labels=list(both))
        self._lost = CounterMetricFamily(
            "muxfleet_neighbour_slowdown_seconds",
            "What requests lost to another model of their unit, in sum",
            labels=["model", "neighbour", "unit", "slo"],
        )

    def start(self, unit_id: str, model: str) -> None:
        """Starts the counters of a model that the unit holds and no load is reported of: its engine counts from its
        attachment on.
        """
        self._preemptions.add_metric([model, unit_id], 0)

    def add(self, unit_id: str, load: ModelLoad) -> None:
        where = [load.model, unit_id]
        self._running.add_metric(where, load.running)
        self._waiting.add_metric(where, load.waiting)
        self._blocks.add_metric([*where, "used"], load.used_blocks)
        self._blocks.add_metric([*where, "quota"], load.quota_blocks)
        self._blocks.add_metric([*where, "borrowed"], load.borrowed_blocks)
        self._blocks.add_metric([*where, "cached"], load.cached_blocks)
        self._hits.add_metric(where, load.prefix_hit_ratio)
        if load.ttft_attainment is not None:
            self._attained.add_metric([*where, "ttft"], load.ttft_attainment)
        if load.tbt_attainment is not None:
            self._attained.add_metric([*where, "tbt"], load.tbt_attainment)
        if load.request_attainment is not None:
            self._attained.add_metric([*where, "request"], load.request_attainment)
        self._rate.add_metric([*where, "prefill"], load.prompt_tokens_per_s)
        self._rate.add_metric([*where, "decode"], load.output_tokens_per_s)
        self._preemptions.add_metric(where, load.preemptions_total)
        for loss in load.lost_to:
            self.lose(unit_id, load.model, loss)

    def lose(self, unit_id: str, model: str, loss: NeighbourLoss) -> None:
        self._lost.add_metric([model, loss.neighbour, unit_id, "ttft"], loss.ttft_s)
        self._lost.add_metric([model, loss.neighbour, unit_id, "tbt"], loss.tbt_s)

    def families(self) -> Iterator[Metric]:
        yield from (self._running, self._waiting, self._blocks, self._hits, self._attained, self._rate)
        yield from (self._preemptions, self._lost)


class _ModelServerAliases:
    """The names that autoscalers and endpoint pickers know (Gateway API Inference Extension, proposal 003)."""

    def __init__(self) -> None:
        both = ("model_name", "engine")
        self._running = _gauge("vllm:num_requests_running", "As muxfleet_num_requests_running", *both)
        self._waiting = _gauge("vllm:num_requests_waiting", "As muxfleet_num_requests_waiting", *both)
        self._usage = _gauge("vllm:kv_cache_usage_perc", "Used blocks as a share of the quota", *both)
        self._config = _gauge("vllm:cache_config_info", "Always 1", *both, "block_size", "num_gpu_blocks")

    def add(self, unit_id: str, load: ModelLoad) -> None:
        where = [load.model, unit_id]
        self._running.add_metric(where, load.running)
        self._waiting.add_metric(where, load.waiting)
        self._usage.add_metric(where, load.used_blocks / load.quota_blocks if load.quota_blocks else 0.0)
        if load.blocks_per_row:
            rows = load.quota_blocks // load.blocks_per_row
            self._config.add_metric([*where, str(load.tokens_per_row), str(rows)], 1)

    def families(self) -> Iterator[Metric]:
        yield from (self._running, self._waiting, self._usage, self._config)
