"""Watches what share of each model's requests is in time, from what gateways counted."""

from dataclasses import dataclass

from router.admission.demand_report import ModelAsked

_FEWEST = 20  # requests of which a share says anything
_FALLEN, _RECOVERED = 0.9, 0.95


@dataclass(slots=True, eq=False)
class _Counted:
    requests: int = 0
    in_time: int = 0
    has_fallen: bool = False


class AttainmentWatch:
    def __init__(self) -> None:
        self._models: dict[str, _Counted] = {}

    def count(self, before: ModelAsked, now: ModelAsked) -> None:
        """Requests that were shed, or for which no unit came, were not in time."""
        counted = self._models.setdefault(now.model, _Counted())
        counted.requests += max(0, _ended(now) - _ended(before))
        counted.in_time += max(0, now.in_time_total - before.in_time_total)

    def fallen(self) -> tuple[str, ...]:
        """Tells once of each model that was in time and is no longer, in words."""
        told = []
        for model, counted in sorted(self._models.items()):
            if counted.requests < _FEWEST:
                continue
            share = counted.in_time / counted.requests
            if share < _FALLEN and not counted.has_fallen:
                told.append(f"{share:.0%} of the last {counted.requests} requests for {model} were in time")
            counted.has_fallen = share < (_RECOVERED if counted.has_fallen else _FALLEN)
            counted.requests = counted.in_time = 0
        return tuple(told)


def _ended(asked: ModelAsked) -> int:
    return asked.finished_total + asked.shed_total + asked.no_capacity_total
