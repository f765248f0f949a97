"""Counts the requests for a model that ended lately, by what became of them."""

from dataclasses import dataclass

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
