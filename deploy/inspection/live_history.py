"""The last minutes of a fleet, as far as somebody was looking, and what became of their requests."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.control.fleet_status import FleetStatus
from deploy.inspection.live_fleet import LiveFleet, LiveSample
from router.admission.demand_report import ModelAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRequests:
    """Counts `ended` requests: `in_time` met their targets, `shed` were turned away by overload, `no_capacity` found no
    unit. Of those that were answered to the end `first_late` had their first token late, `gaps_late` a gap: some both.
    """

    ended: int = 0
    in_time: int = 0
    shed: int = 0
    no_capacity: int = 0
    first_late: int = 0
    gaps_late: int = 0

    @property
    def share_in_time(self) -> float | None:
        """None: no request has ended."""
        return min(1.0, max(0.0, self.in_time / self.ended)) if self.ended > 0 else None


def requests_since(before: ModelAsked, now: ModelAsked) -> RecentRequests:
    finished = now.finished_total - before.finished_total
    shed = now.shed_total - before.shed_total
    no_capacity = now.no_capacity_total - before.no_capacity_total
    if min(finished, shed, no_capacity) < 0:  # a gateway has left, and its counts with it
        return RecentRequests()
    return RecentRequests(
        ended=finished + shed + no_capacity,
        in_time=max(0, now.in_time_total - before.in_time_total),
        shed=shed,
        no_capacity=no_capacity,
        first_late=max(0, finished - (now.ttft_met_total - before.ttft_met_total)),
        gaps_late=max(0, finished - (now.tbt_met_total - before.tbt_met_total)),
    )


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
