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
        empty = self._empty.get(where)
        if report.unit_id in self._before:
            place = self._before.pop(report.unit_id)
        elif empty:
            place = empty.pop()
        elif (before := self._unclaimed(*where)) is not None:
            place = self._before.pop(before)
        else:
            number = self._counts.get(where, 0)
            self._counts[where] = number + 1
            place = f"{report.pool}/{report.node}/{number}"
        self._place_of[report.unit_id] = place

    def _unclaimed(self, pool: str, node: str) -> str | None:
        """Returns a unit of the node that the control loop before led and this one has not heard of: it may have died
        meanwhile, and the one that comes be its successor.
        """
        return next((u for u, place in self._before.items() if place.rsplit("/", 1)[0] == f"{pool}/{node}"), None)

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
