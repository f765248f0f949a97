"""Tracks what a gateway itself has put on each unit since the unit's last report."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from router.routing.routing_table import Floats, RoutingTable


@dataclass(slots=True, eq=False)
class _Sent:
    unit_id: str
    sent_s: float


@dataclass(slots=True, eq=False)
class _Prefill:
    predicted_s: float
    due_s: float


class UnreportedLoad:
    """`free_at_s` and `requests` are the table's columns, brought up to now: a report misses what was sent since, and
    still counts what has ended since. A first token tells that the prefills before it are done, sooner than any report.
    Rows are those of the table of the last `rebase`.
    """

    def __init__(self, table: RoutingTable) -> None:
        self._sent: dict[str, _Sent] = {}
        self._counts: dict[str, int] = {}
        self._prefilling: dict[str, dict[str, _Prefill]] = {}  # by unit: those without a first token yet
        self._own_free_at_s: dict[str, float] = {}  # when those are done
        self.rebase(table)

    def count(self, unit_id: str) -> int:
        """Requests that this gateway has there now."""
        return self._counts.get(unit_id, 0)

    def __len__(self) -> int:
        return len(self._sent)

    def sent(
        self, request_id: str, unit_id: str, *, prefill_s: float, now_s: float, due_s: float = float("inf")
    ) -> None:
        """`prefill_s` as predicted; 0 when nothing is known. `due_s`: when its first token should be there."""
        assert request_id not in self._sent, f"request {request_id} is on a unit already"
        entry = self._sent[request_id] = _Sent(unit_id, now_s)
        self._counts[unit_id] = self.count(unit_id) + 1
        self._prefilling.setdefault(unit_id, {})[request_id] = _Prefill(prefill_s, due_s)
        self._own_free_at_s[unit_id] = max(self._own_free_at_s.get(unit_id, now_s), now_s) + prefill_s
        self._add(entry, prefill_s)

    def before_s(self, unit_id: str, row: int, wait_s: float, *, due_s: float, now_s: float) -> float:
        """Returns, of the wait there, what goes before a request that is due then: not our own prefills that are due
        later, nor those that are late by now; units put both behind. What can be in time is not done by time alone:
        without a first token at most one of ours is thought to be nearly done.
        """
        prefills = self._prefilling.get(unit_id)
        if not prefills:
            return wait_s
        in_time = [p.predicted_s for p in prefills.values() if now_s < p.due_s and (p.due_s <= due_s or due_s <= now_s)]
        late_s = sum(p.predicted_s for p in prefills.values() if p.due_s <= now_s) if due_s <= now_s else 0.0
        others_s = max(0.0, float(self.free_at_s[row]) - self._own_free_at_s[unit_id])
        own_s = sum(in_time)
        return max(min(wait_s, others_s + own_s + late_s), own_s - max(in_time, default=0.0))

    def first_token(self, request_id: str, now_s: float) -> None:
        """Notes a first token: what waits there now, of ours, is what was sent and has no token yet."""
        unit_id = self._sent[request_id].unit_id
        if not self._done_prefilling(unit_id, request_id):
            return
        free_at_s = now_s + sum(p.predicted_s for p in self._prefilling.get(unit_id, {}).values())
        if unit_id in self._own_free_at_s:
            self._own_free_at_s[unit_id] = free_at_s
        if (row := self._table.row.get(unit_id)) is not None:
            self.free_at_s[row] = free_at_s

    def left(self, request_id: str) -> None:
        """It ended there, or the unit was lost."""
        entry = self._sent.pop(request_id)
        self._done_prefilling(entry.unit_id, request_id)
        self._counts[entry.unit_id] -= 1
        if not self._counts[entry.unit_id]:
            del self._counts[entry.unit_id]
        row = self._table.row.get(entry.unit_id)
        if row is not None:
            self.requests[row] -= 1.0

    def rebase(self, table: RoutingTable) -> None:
        """Brings the columns of a new table up to now."""
        self._table = table
        self.free_at_s: Floats = table.free_at_s.copy()
        self.requests: Floats = table.requests.copy()
        for entry in self._sent.values():
            row = table.row.get(entry.unit_id)
            if row is not None and entry.sent_s > table.reported_s[row]:
                self.requests[row] += 1.0
        for unit_id, prefills in self._prefilling.items():
            if (row := table.row.get(unit_id)) is not None:
                self.free_at_s[row] = self._free_at_s(unit_id, prefills, row)
        own = np.fromiter((self.count(unit_id) for unit_id in table.unit_ids), float, len(table.unit_ids))
        np.maximum(self.requests, own, out=self.requests)  # a unit whose reports stopped has at least these

    def _free_at_s(self, unit_id: str, prefills: Mapping[str, _Prefill], row: int) -> float:
        """After our prefills, and what the report shows beyond those of ours that it can show: other gateways' work."""
        reported_s = float(self._table.reported_s[row])
        shown_s = sum(
            p.predicted_s for request_id, p in prefills.items() if self._sent[request_id].sent_s <= reported_s
        )
        others_s = max(0.0, float(self._table.free_at_s[row]) - reported_s - shown_s)
        return max(self._own_free_at_s[unit_id], reported_s) + others_s

    def _done_prefilling(self, unit_id: str, request_id: str) -> bool:
        """False if it was done before."""
        of_unit = self._prefilling.get(unit_id, {})
        known = of_unit.pop(request_id, None) is not None
        if not of_unit:
            self._prefilling.pop(unit_id, None)
            self._own_free_at_s.pop(unit_id, None)
        return known

    def _add(self, entry: _Sent, prefill_s: float) -> None:
        row = self._table.row.get(entry.unit_id)
        if row is not None:
            self.requests[row] += 1.0
            self.free_at_s[row] = max(self.free_at_s[row], entry.sent_s) + prefill_s
