"""What a gateway counts. One registry per gateway; labels are bounded by the models and units of the view."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pdmux_actor.messages import Slo
from router.view import FleetView

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
)
GAP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
DURATION_BUCKETS_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class GatewayMetrics:
    def __init__(self, *, version: str, view: Callable[[], FleetView], view_age_s: Callable[[], float]) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "muxfleet_requests",
            "HTTP requests by status; 499: the client left first",
            ["model", "endpoint", "status"],
            registry=registry,
        )
        self.answers = Counter("muxfleet_answers", "Generations that finished", ["model"], registry=registry)
        self.slo_met = Counter(
            "muxfleet_answers_slo_met", "Finished generations within target", ["model", "slo"], registry=registry
        )
        self.ttft = Histogram(
            "muxfleet_time_to_first_token_seconds",
            "From the accepted request to its first token",
            ["model"],
            registry=registry,
            buckets=TTFT_BUCKETS_S,
        )
        self.gap = Histogram(
            "muxfleet_inter_token_latency_seconds",
            "Between outputs of one generation",
            ["model"],
            registry=registry,
            buckets=GAP_BUCKETS_S,
        )
        self.duration = Histogram(
            "muxfleet_request_duration_seconds",
            "From the accepted request to its last token",
            ["model"],
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self.prompt_tokens = Counter("muxfleet_prompt_tokens", "Prompt tokens", ["model"], registry=registry)
        self.output_tokens = Counter("muxfleet_generation_tokens", "Output tokens", ["model"], registry=registry)
        self.in_flight = Gauge("muxfleet_generations_in_flight", "Generations under way", ["model"], registry=registry)
        self.queued = Gauge(
            "muxfleet_generations_queued", "Generations before their first token", ["model"], registry=registry
        )
        self.shed = Counter("muxfleet_requests_shed", "Requests refused by admission", ["model"], registry=registry)
        self.continuations = Counter(
            "muxfleet_generation_continuations", "Generations that lost their unit", ["model"], registry=registry
        )
        age = Gauge("muxfleet_telemetry_age_seconds", "Age of the view of the fleet; -1: none yet", registry=registry)
        age.set_function(view_age_s)
        Gauge("muxfleet_build_info", "Always 1", ["version"], registry=registry).labels(version).set(1)
        registry.register(_ViewCollector(view))

    def exposition(self) -> bytes:
        text: bytes = generate_latest(self._registry)
        return text

    def stopwatch(self, model: str, slo: Slo, now_s: float) -> "GenerationStopwatch":
        return GenerationStopwatch(self, model, slo, now_s)


class GenerationStopwatch:
    """Times one generation. Gaps are those between outputs, which may hold several tokens."""

    def __init__(self, metrics: GatewayMetrics, model: str, slo: Slo, now_s: float) -> None:
        self._metrics = metrics
        self._model = model
        self._slo = slo
        self._started_s = self._previous_s = now_s
        self._gap = metrics.gap.labels(model)
        self._first = True
        self._ttft_met = False
        self._tbt_met = True
        self._num_tokens = 0

    def on_output(self, num_tokens: int, now_s: float) -> None:
        elapsed_s = now_s - self._previous_s
        self._previous_s = now_s
        self._num_tokens += num_tokens
        if self._first:
            self._first = False
            self._ttft_met = elapsed_s <= self._slo.ttft_s
            self._metrics.ttft.labels(self._model).observe(elapsed_s)
        else:
            self._tbt_met = self._tbt_met and elapsed_s <= self._slo.tbt_s
            self._gap.observe(elapsed_s)

    def on_finish(self) -> None:
        metrics, model = self._metrics, self._model
        metrics.answers.labels(model).inc()
        metrics.duration.labels(model).observe(self._previous_s - self._started_s)
        if self._ttft_met:
            metrics.slo_met.labels(model, "ttft").inc()
        if self._tbt_met:
            metrics.slo_met.labels(model, "tbt").inc()

    def on_end(self) -> None:
        """Also for generations that did not finish: their tokens were paid for."""
        self._metrics.output_tokens.labels(self._model).inc(self._num_tokens)


class _ViewCollector:
    """The units' own figures, as of the newest view: units that left it leave the exposition too."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("muxfleet_num_requests_running", "Running", labels=["model", "unit"])
        waiting = GaugeMetricFamily("muxfleet_num_requests_waiting", "Waiting", labels=["model", "unit"])
        blocks = GaugeMetricFamily("muxfleet_kv_blocks", "Token blocks", labels=["model", "unit", "state"])
        shares = GaugeMetricFamily("muxfleet_unit_sms", "SMs (cores on a CPU) per lane", labels=["unit", "phase"])
        bubbles = GaugeMetricFamily(
            "muxfleet_lane_bubble_share", "Share of the last seconds a lane idled with work", labels=["unit", "phase"]
        )
        ages = GaugeMetricFamily("muxfleet_unit_report_age_seconds", "Age in the view", labels=["unit"])
        for unit in self._view().units:
            unit_id, load = unit.report.unit_id, unit.report.load
            ages.add_metric([unit_id], unit.age_s)
            if load is None:
                continue
            shares.add_metric([unit_id, "prefill"], load.prefill_sms)
            shares.add_metric([unit_id, "decode"], load.decode_sms)
            bubbles.add_metric([unit_id, "prefill"], load.prefill_bubble_share)
            bubbles.add_metric([unit_id, "decode"], load.decode_bubble_share)
            for model in load.models:
                running.add_metric([model.model, unit_id], model.running)
                waiting.add_metric([model.model, unit_id], model.waiting)
                blocks.add_metric([model.model, unit_id, "used"], model.used_blocks)
                blocks.add_metric([model.model, unit_id, "quota"], model.quota_blocks)
        yield from (running, waiting, blocks, shares, bubbles, ages)
