"""Decides which place of the fleet a unit has: a restarted unit has a new id and takes the place of the one that
died.
"""

from collections.abc import Mapping

from pdmux_actor.lease import UnitReport


class UnitSlots:
    """A place is pool/node/number. Of several empty ones on a node the newest goes first."""

    def __init__(self) -> None:
        self._place_of: dict[str, str] = {}
        self._empty: dict[tuple[str, str], list[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._before: dict[str, str] = {}

    def join(self, report: UnitReport) -> None:
        where = (report.pool, report.node)
        place = self._before.pop(report.unit_id, None)
        if place is None:
            self._place_of[report.unit_id] = self._free(*where)
            return
        other = next((unit_id for unit_id, of_unit in self._place_of.items() if of_unit == place), None)
        self._place_of[report.unit_id] = place
        if other is not None:  # that one came first, and this one might have died
            self._place_of[other] = self._free(*where)
        elif place in (empty := self._empty.get(where, [])):
            empty.remove(place)

    def _free(self, pool: str, node: str) -> str:
        """Returns a place that was left; or that of a unit which the control loop before led and this one has not heard
        of: it may have died meanwhile, and the one that comes be its successor; or a new one.
        """
        if empty := self._empty.get((pool, node)):
            return empty.pop()
        taken = set(self._place_of.values())
        for place in self._before.values():
            if place not in taken and place.rsplit("/", 1)[0] == f"{pool}/{node}":
                return place
        number = self._counts.get((pool, node), 0)
        self._counts[pool, node] = number + 1
        return f"{pool}/{node}/{number}"

    def leave(self, report: UnitReport) -> str:
        place = self._place_of.pop(report.unit_id)
        self._empty.setdefault((report.pool, report.node), []).append(place)
        return place

    def kept(self) -> Mapping[str, str]:
        """Returns by unit its place."""
        return dict(sorted(self._place_of.items()))

    def restore(self, place_of: Mapping[str, str]) -> None:
        """Units that join later and had a place before have it again."""
        self._before = dict(place_of)
        for place in place_of.values():
            pool, node, number = place.rsplit("/", 2)
            self._counts[pool, node] = max(self._counts.get((pool, node), 0), int(number) + 1)

    def of(self, unit_id: str) -> str:
        return self._place_of[unit_id]
