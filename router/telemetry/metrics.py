"""Counts what a gateway does, and tells what it knows of the fleet, a registry for each; labels are bounded by the
models and units of the view.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from pdmux_actor.messages import Slo
from pdmux_actor.serving.frames import KvMoved
from router.admission.block_ledger import QuotaLedger
from router.routing.routing import REASONS
from router.telemetry.fleet_metrics import merged_exposition
from router.telemetry.request_labels import ENDPOINTS, GENERATION_ENDPOINTS, OTHER, STATUSES, STATUSES_OF_MODELS
from router.telemetry.unit_metrics import FleetCollector, LedgerCollector, UnitCollector
from router.view import FleetView

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
)
GAP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
DURATION_BUCKETS_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class GatewayMetrics:
    """docs/metrics.md lists them for users.

    Counters are there at 0 as soon as the values of their labels are known: what a series is born with, Prometheus'
    `increase()` does not see.
    """

    def __init__(
        self, *, version: str, view: Callable[[], FleetView], view_age_s: Callable[[], float], ledger: QuotaLedger
    ) -> None:
        disable_created_metrics()  # of this process: half of all series, and nobody reads when a counter began
        registry = self._registry = CollectorRegistry()
        self._models: set[str] = set()
        self._of_models: list[Counter] = []
        self._count_requests(registry)
        self._time_generations(registry)
        self._count_decisions(registry)
        age = Gauge("muxfleet_telemetry_age_seconds", "Age of the view of the fleet; -1: none yet", registry=registry)
        age.set_function(view_age_s)
        self.view_age_s = view_age_s
        Gauge("muxfleet_build_info", "Always 1", ["version"], registry=registry).labels(version).set(1)
        registry.register(LedgerCollector(ledger))
        self.batches = BatchMetrics(registry)
        self._fleet = CollectorRegistry()
        self._fleet.register(UnitCollector(view))
        self._fleet.register(FleetCollector(view))

    def _count_requests(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            made = Counter(name, text, labels, registry=registry)
            if labels == ("model",):
                self._of_models.append(made)
            return made

        text = "HTTP requests by status; 499: the client left first"
        self.requests = counter("muxfleet_requests", text, "model", "endpoint", "status")
        for endpoint, status in product((*ENDPOINTS, OTHER), STATUSES):
            self.requests.labels("", endpoint, str(status))
        self.answers = counter("muxfleet_answers", "Generations that finished", "model")
        self.slo_met = counter("muxfleet_answers_slo_met", "Finished generations within target", "model", "slo")
        text = "Finished generations with their first token and every gap within target"
        self.in_time = counter("muxfleet_requests_in_time", text, "model")
        self.prompt_tokens = counter("muxfleet_prompt_tokens", "Prompt tokens", "model")
        self.output_tokens = counter("muxfleet_generation_tokens", "Output tokens", "model")
        self.shed = counter("muxfleet_requests_shed", "Generations refused by overload", "model")
        self.unserved = counter("muxfleet_requests_unserved", "Requests that no unit came for in time", "model")
        self.failed = counter(
            "muxfleet_generations_failed", "Generations that a unit had and that ended in an error", "model"
        )
        self.rate_limited = counter(
            "muxfleet_requests_rate_limited", "Requests beyond the rate of their API key", "key"
        )
        self.key_generations = counter("muxfleet_key_generations", "Generations that ended, by API key", "key")
        self.key_tokens = counter("muxfleet_key_tokens", "Tokens of prompts and answers, by API key", "key")
        self.refused_keys = counter("muxfleet_requests_unauthorized", "Requests that their API key did not admit")
        self.continuations = counter("muxfleet_generation_continuations", "Generations that lost their unit", "model")

    def _time_generations(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, ["model"], registry=registry, buckets=buckets)

        first, gap = "muxfleet_time_to_first_token_seconds", "muxfleet_inter_token_latency_seconds"
        self.ttft = histogram(first, "From the accepted request to its first token", TTFT_BUCKETS_S)
        self.gap = histogram(gap, "Between outputs of one generation", GAP_BUCKETS_S)
        self.queue_time = histogram(
            "muxfleet_queue_time_seconds", "From the accepted request to its admission", TTFT_BUCKETS_S
        )
        self.cold_start = histogram(
            "muxfleet_cold_start_seconds", "To the admission, where no unit had the model ready", TTFT_BUCKETS_S
        )
        self.duration = histogram(
            "muxfleet_request_duration_seconds", "From the accepted request to its last token", DURATION_BUCKETS_S
        )
        self.prediction_error = histogram(
            "muxfleet_ttft_prediction_error_seconds", "Absolute, of the first token after admission", GAP_BUCKETS_S
        )

    def _count_decisions(self, registry: CollectorRegistry) -> None:
        self.in_flight = Gauge("muxfleet_generations_in_flight", "Generations under way", ["model"], registry=registry)
        self.queued = Gauge(
            "muxfleet_generations_queued", "Generations that wait for a turn or a unit", ["model"], registry=registry
        )
        self.choices = Counter(
            "muxfleet_routing_decisions",
            "Generations sent to a unit, by what the choice was made from",
            ["reason"],
            registry=registry,
        )
        self.prefix_tokens = Counter(
            "muxfleet_routed_prefix_tokens", "Prompt tokens sent where they may be cached", ["model"], registry=registry
        )
        self._of_models.append(self.prefix_tokens)
        for reason in REASONS:
            self.choices.labels(reason)
        self._count_kv_transfers(registry)

    def _count_kv_transfers(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            made = Counter(name, text, ["model"], registry=registry)
            self._of_models.append(made)
            return made

        self._kv_transfers = counter("muxfleet_kv_transfers", "Generations whose prompt was computed on another unit")
        text = "Of those, the ones whose KV did not all come: the rest was computed again"
        self._kv_transfers_short = counter("muxfleet_kv_transfers_short", text)
        self._kv_bytes = counter("muxfleet_kv_transfer_bytes", "KV that units have fetched from other units")
        self._kv_seconds = Histogram(
            "muxfleet_kv_transfer_seconds",
            "From the request at the unit that goes on with it to its KV there",
            ["model"],
            registry=registry,
            buckets=GAP_BUCKETS_S,
        )

    def kv_moved(self, model: str, moved: KvMoved) -> None:
        self._kv_transfers.labels(model).inc()
        self._kv_transfers_short.labels(model).inc(int(bool(moved.why_not_all)))
        self._kv_bytes.labels(model).inc(moved.num_bytes)
        self._kv_seconds.labels(model).observe(moved.seconds)

    def start_models(self, models: Iterable[str]) -> None:
        """Starts the counters of the view's models; those that were there before go on."""
        for model in set(models) - self._models:
            self._models.add(model)
            for counter in self._of_models:
                counter.labels(model)
            for slo in ("ttft", "tbt"):
                self.slo_met.labels(model, slo)
            for endpoint, status in product(GENERATION_ENDPOINTS, STATUSES_OF_MODELS):
                self.requests.labels(model, endpoint, str(status))

    def start_keys(self, names: Iterable[str]) -> None:
        """Starts the counters of the API keys in force."""
        for name in names:
            for counter in (self.rate_limited, self.key_generations, self.key_tokens):
                counter.labels(name)

    def exposition(self, *, openmetrics: bool = False) -> bytes:
        """Tells all of it. This and what follows may be called from any thread: a thousand units take 0.3 s."""
        own, fleet = self.own_text(openmetrics=openmetrics), self.fleet_text(openmetrics=openmetrics)
        return merged_exposition({"": own}, fleet)

    def own_text(self, *, openmetrics: bool) -> bytes:
        """Tells what this gateway counted. OpenMetrics' text format has exemplars: of latencies, the traces of some
        requests.
        """
        return _text(self._registry, openmetrics=openmetrics)

    def fleet_text(self, *, openmetrics: bool) -> bytes:
        """Tells what every gateway knows of units and models."""
        return _text(self._fleet, openmetrics=openmetrics)

    def stopwatch(
        self, model: str, slo: Slo, now_s: float, exemplar: dict[str, str] | None = None
    ) -> "GenerationStopwatch":
        """`exemplar` names the trace of a generation that is traced."""
        return GenerationStopwatch(self, model, slo, now_s, exemplar)


def _text(registry: CollectorRegistry, *, openmetrics: bool) -> bytes:
    text: bytes = openmetrics_text(registry) if openmetrics else generate_latest(registry)
    return text


class GenerationStopwatch:
    """Times one generation. Gaps are those between outputs, which may hold several tokens."""

    def __init__(
        self, metrics: GatewayMetrics, model: str, slo: Slo, now_s: float, exemplar: dict[str, str] | None
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._slo = slo
        self._exemplar = exemplar
        self._started_s = self._previous_s = now_s
        self._gap = metrics.gap.labels(model)
        self._first = True
        self.ttft_met = False
        self.tbt_met = True
        self.num_tokens = 0

    def on_output(self, num_tokens: int, now_s: float) -> float | None:
        """The gap to the output before; None for the first."""
        elapsed_s = now_s - self._previous_s
        self._previous_s = now_s
        self.num_tokens += num_tokens
        if self._first:
            self._first = False
            self.ttft_met = elapsed_s <= self._slo.ttft_s
            self._metrics.ttft.labels(self._model).observe(elapsed_s, self._exemplar)
            return None
        self.tbt_met = self.tbt_met and elapsed_s <= self._slo.tbt_s
        self._gap.observe(elapsed_s, self._exemplar)
        return elapsed_s

    def on_finish(self, *, is_judged: bool = True) -> None:
        """`is_judged`: it counts in the figures of requests in time."""
        metrics, model = self._metrics, self._model
        metrics.duration.labels(model).observe(self._previous_s - self._started_s, self._exemplar)
        if not is_judged:
            return
        metrics.answers.labels(model).inc()
        metrics.slo_met.labels(model, "ttft").inc(int(self.ttft_met))
        metrics.slo_met.labels(model, "tbt").inc(int(self.tbt_met))
        metrics.in_time.labels(model).inc(int(self.ttft_met and self.tbt_met))

    def on_end(self) -> None:
        """Also for generations that did not finish: their tokens were paid for."""
        self._metrics.output_tokens.labels(self._model).inc(self.num_tokens)


class BatchMetrics:
    """docs/metrics.md lists them for users."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Lines of batches that have a result"
        self._lines = Counter("muxfleet_batch_lines", text, ["outcome"], registry=registry)
        self._running = Gauge("muxfleet_batches_running", "Batches that this gateway works on", registry=registry)
        self._left = Gauge("muxfleet_batch_lines_left", "Lines of those that have no result yet", registry=registry)
        for outcome in ("completed", "failed"):
            self._lines.labels(outcome)

    def line_done(self, *, ok: bool) -> None:
        self._lines.labels("completed" if ok else "failed").inc()

    def follow(self, running: Callable[[], int], lines_left: Callable[[], int]) -> None:
        """Asks these whenever it is asked."""
        self._running.set_function(running)
        self._left.set_function(lines_left)
