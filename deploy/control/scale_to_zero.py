"""Decides which models deserve a place now: those that may be scaled to zero sleep while nobody asks for them."""

from collections.abc import Iterable, Mapping

from deploy.control.popularity import Popularity
from deploy.fleet_file.model_catalog import Catalog, CatalogModel
from pdmux_actor.lease import UnitReport


class ScaleToZero:
    def __init__(self, popularity: Popularity) -> None:
        self._popularity = popularity
        self._kept_since_s: dict[str, float] = {}
        self._only_low: set[str] = set()
        self._ended_total: dict[tuple[str, str], int] = {}
        self._in_earnest_s: dict[str, float] = {}

    def keep(self, model: str, now_s: float) -> None:
        """It is in use, whoever asked: a fresh control loop finds it on a unit, or a unit runs a request of it."""
        self._kept_since_s[model] = now_s

    def keep_busy(self, reports: Iterable[UnitReport], now_s: float) -> None:
        """Keeps what units run or have waiting, and notes whether all of that is of low priority, and what ended."""
        before, self._ended_total, self._only_low = self._ended_total, {}, set()
        for report in reports:
            for load in report.load.models if report.load is not None else ():
                busy, place = load.running + load.waiting, (report.unit_id, load.model)
                self._ended_total[place] = load.requests_ended_total
                if busy:
                    self.keep(load.model, now_s)
                if busy > load.giving_way or load.requests_ended_total != before.get(place, 0):
                    self._in_earnest_s[load.model] = now_s
                elif busy:
                    self._only_low.add(load.model)

    def asleep(self, catalog: Catalog, now_s: float) -> frozenset[str]:
        """A model with an adapter that is awake is awake, too."""
        awake = {m.id for m in catalog.models if self.is_awake(m, now_s)}
        awake |= {catalog.place_of(model) for model in awake}
        return frozenset(m.id for m in catalog.models if m.id not in awake)

    def kept(self) -> Mapping[str, float]:
        """Returns by model when it was in use last, whoever asked."""
        return dict(sorted(self._kept_since_s.items()))

    def is_awake(self, model: CatalogModel, now_s: float) -> bool:
        replicas = model.settings.replicas
        return replicas.min > 0 or now_s - self.last_used_s(model.id) <= replicas.idle_after_s

    def last_used_s(self, model: str) -> float:
        never = float("-inf")
        asked_s = self._popularity.last_asked_s(model)
        return max(never if asked_s is None else asked_s, self._kept_since_s.get(model, never))

    def used_in_earnest_s(self, model: str) -> float:
        """Returns when it was in use last, where requests of low priority alone use it now: before they did."""
        return self._in_earnest_s.get(model, float("-inf")) if model in self._only_low else self.last_used_s(model)
