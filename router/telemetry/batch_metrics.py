"""Counts what a gateway does for batches."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


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
