"""Decides which models deserve a place now: those that may be scaled to zero sleep while nobody asks for them."""

from deploy.control.popularity import Popularity
from deploy.fleet_file.model_catalog import CatalogModel


class ScaleToZero:
    def __init__(self, popularity: Popularity) -> None:
        self._popularity = popularity
        self._kept_since_s: dict[str, float] = {}

    def keep(self, model: str, now_s: float) -> None:
        """It is in use, whoever asked: a fresh control loop finds it on a unit, or a unit runs a request of it."""
        self._kept_since_s[model] = now_s

    def is_awake(self, model: CatalogModel, now_s: float) -> bool:
        replicas = model.settings.replicas
        return replicas.min > 0 or now_s - self.last_used_s(model.id) <= replicas.idle_after_s

    def last_used_s(self, model: str) -> float:
        never = float("-inf")
        asked_s = self._popularity.last_asked_s(model)
        return max(never if asked_s is None else asked_s, self._kept_since_s.get(model, never))
