"""The last minutes of a fleet, as far as somebody was looking."""

from collections import deque
from collections.abc import Mapping

from deploy.control.fleet_status import FleetStatus
from deploy.inspection.live_fleet import LiveFleet, LiveSample
from deploy.inspection.recent_requests import RecentRequests, requests_since
from router.admission.demand_report import ModelAsked

_EVERY_S = 1.0
_SAMPLES = 300
_WINDOW_S = 60.0


class LiveHistory:
    """Holds at most five minutes. Nothing is added while nobody asks."""

    def __init__(self) -> None:
        self._samples: deque[LiveSample] = deque(maxlen=_SAMPLES)
        self._counts: deque[tuple[float, Mapping[str, ModelAsked]]] = deque(maxlen=_SAMPLES)

    def recent_requests(self, status: FleetStatus, now_s: float) -> Mapping[str, RecentRequests]:
        """Returns those that ended in the last minute, or since somebody looks."""
        counts = {m.model: m.asked for m in status.models if m.asked is not None}
        if not self._counts or now_s - self._counts[-1][0] >= _EVERY_S:
            self._counts.append((now_s, counts))
        while len(self._counts) > 1 and now_s - self._counts[0][0] > _WINDOW_S:
            self._counts.popleft()
        oldest = self._counts[0][1]
        return {model: requests_since(oldest.get(model, asked), asked) for model, asked in counts.items()}

    def add(self, fleet: LiveFleet, at_s: float) -> None:
        """`fleet` is of all units; `at_s` a time of day."""
        if self._samples and at_s - self._samples[-1].at_s < _EVERY_S:
            return
        parts = fleet.units if fleet.matching == len(fleet.units) else fleet.pools
        self._samples.append(
            LiveSample(
                at_s=round(at_s, 1),
                models={m.model: (m.in_time, m.waiting, m.tokens_per_s) for m in fleet.models},
                sms={getattr(p, "unit", None) or p.pool: (p.prefill_sms, p.decode_sms) for p in parts},
            )
        )

    def told(self) -> tuple[LiveSample, ...]:
        """Oldest first."""
        return tuple(self._samples)
