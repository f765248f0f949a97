"""How many requests this gateway has where."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from router.routing import OwnLoad


class InFlight:
    """Counts per unit and, per model, the requests that wait for their first token."""

    def __init__(self) -> None:
        self._per_unit: Counter[str] = Counter()
        self._at_view: Counter[str] = Counter()
        self._queued: Counter[str] = Counter()

    @property
    def own_load(self) -> OwnLoad:
        return OwnLoad(now=self._per_unit, at_view=self._at_view)

    def queued(self, model: str) -> int:
        return self._queued[model]

    def on_view(self) -> None:
        self._at_view = self._per_unit.copy()

    @contextmanager
    def on_unit(self, unit_id: str) -> Iterator[None]:
        self._per_unit[unit_id] += 1
        try:
            yield
        finally:
            _decrement(self._per_unit, unit_id)

    def enter_queue(self, model: str) -> None:
        self._queued[model] += 1

    def leave_queue(self, model: str) -> None:
        _decrement(self._queued, model)


def _decrement(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    assert counter[key] >= 0, f"in-flight count of {key} fell below zero"
    if counter[key] == 0:
        del counter[key]
