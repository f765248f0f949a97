"""Tells the load of units: as they report it, and what a gateway itself has put on them since."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import ModelLoad
from placement.unit_role import UnitRole
from router.view import FleetView, UnitView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REPORT_LAG_S = 0.3
"""A heartbeat carries an engine's report of up to a quarter of a second ago."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Units that have one model ready. Arrays have one entry per unit; `unit` holds rows of the table.

    A prefill of n tokens takes `base_s + n * per_token_s`; nan where no unit has told yet. `crowded` units have used up
    the model's quota, those that `constrains` can make outputs follow a schema, those that are for `prefill` hand
    requests over to those that are for `decode`. `weights` names those that each unit has; () where it does not tell.
    """

    unit: Ints
    position: Mapping[str, int]
    max_model_len: Ints
    base_s: Floats
    per_token_s: Floats
    crowded: npt.NDArray[np.bool_]
    constrains: npt.NDArray[np.bool_]
    prefill: npt.NDArray[np.bool_]
    decode: npt.NDArray[np.bool_]
    has_roles: bool
    weights: tuple[tuple[str | None, ...], ...]
    kinds_of_weights: frozenset[tuple[str | None, ...]]

    def have(self, weights: tuple[str | None, ...]) -> npt.NDArray[np.bool_] | None:
        """Says which units have these weights; None: all of them, as nearly always."""
        if not weights or self.kinds_of_weights == {weights}:
            return None
        return np.array([not w or w == weights for w in self.weights], dtype=np.bool_)

    @property
    def has_prediction(self) -> bool:
        return bool(not np.isnan(self.per_token_s[0]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTable:
    """Rows are units. `reported_s`: what a report shows had happened by then. `free_at_s`: when the prefill work that
    waited then is done. `requests` are those that ran or waited then. `models` are those that a unit has ready.
    """

    unit_ids: tuple[str, ...]
    endpoints: tuple[str, ...]
    row: Mapping[str, int]
    heard_s: Floats
    reported_s: Floats
    free_at_s: Floats
    requests: Floats
    num_gpus: Floats
    models: tuple[frozenset[str], ...]
    by_model: Mapping[str, Candidates]

    @classmethod
    def of(cls, view: FleetView, now_s: float) -> "RoutingTable":
        """`now_s` is when the view arrived."""
        units = view.units
        heard_s = now_s - np.fromiter((u.age_s for u in units), float, len(units))
        backlog_s = np.fromiter((_backlog_s(u) for u in units), float, len(units))
        reported_s = heard_s - REPORT_LAG_S
        loads = (u.report.load for u in units)
        requests = (0 if load is None else sum(m.running + m.waiting for m in load.models) for load in loads)
        ids = tuple(u.report.unit_id for u in units)
        by_model = _candidates(units)
        return cls(
            unit_ids=ids,
            endpoints=tuple(u.report.endpoint for u in units),
            row={unit_id: i for i, unit_id in enumerate(ids)},
            heard_s=heard_s,
            reported_s=reported_s,
            free_at_s=reported_s + backlog_s,
            requests=np.fromiter(requests, float, len(units)),
            num_gpus=np.fromiter((max(1, u.report.num_gpus) for u in units), float, len(units)),
            models=_models_by_row(by_model, len(units)),
            by_model=by_model,
        )


@dataclass(slots=True, eq=False)
class _Ready:
    row: int
    unit_id: str
    max_model_len: int
    load: ModelLoad | None
    constrains: bool
    role: UnitRole
    weights: tuple[str | None, ...]


def _candidates(units: Iterable[UnitView]) -> Mapping[str, Candidates]:
    ready: dict[str, list[_Ready]] = {}
    for row, unit in enumerate(units):
        report = unit.report
        loads = {} if report.load is None else {m.model: m for m in report.load.models}
        for status in report.models:
            if status.phase is ModelPhase.READY and status.max_model_len is not None:
                load = loads.get(status.model)
                entry = _Ready(
                    row,
                    report.unit_id,
                    status.max_model_len,
                    load,
                    report.constrains,
                    report.role,
                    report.weights_of(status),
                )
                ready.setdefault(status.model, []).append(entry)
    return {model: _columns(entries) for model, entries in ready.items()}


def _models_by_row(by_model: Mapping[str, Candidates], rows: int) -> tuple[frozenset[str], ...]:
    models: list[list[str]] = [[] for _ in range(rows)]
    for model, candidates in by_model.items():
        for row in candidates.unit.tolist():
            models[row].append(model)
    known: dict[frozenset[str], frozenset[str]] = {}  # most units have what others have
    return tuple(known.setdefault(of_row, of_row) for of_row in map(frozenset, models))


def _columns(entries: list[_Ready]) -> Candidates:
    loads = [e.load for e in entries]
    told = [load is not None and load.prefill_s_per_token > 0 for load in loads]
    nan = float("nan")
    base_s = np.array([nan if not t or x is None else x.prefill_base_s for t, x in zip(told, loads, strict=True)])
    slope_s = np.array([nan if not t or x is None else x.prefill_s_per_token for t, x in zip(told, loads, strict=True)])
    if any(told) and not all(told):  # a unit that has just loaded the model is taken for an average one
        base_s[np.isnan(base_s)] = np.nanmedian(base_s)
        slope_s[np.isnan(slope_s)] = np.nanmedian(slope_s)
    return Candidates(
        unit=np.array([e.row for e in entries], dtype=np.int64),
        position={e.unit_id: i for i, e in enumerate(entries)},
        max_model_len=np.array([e.max_model_len for e in entries], dtype=np.int64),
        base_s=base_s,
        per_token_s=slope_s,
        crowded=np.array([x is not None and x.used_blocks >= x.quota_blocks > 0 for x in loads], dtype=np.bool_),
        constrains=np.array([e.constrains for e in entries], dtype=np.bool_),
        prefill=np.array([e.role is UnitRole.PREFILL for e in entries], dtype=np.bool_),
        decode=np.array([e.role is UnitRole.DECODE for e in entries], dtype=np.bool_),
        has_roles=any(e.role is not UnitRole.BOTH for e in entries),
        weights=tuple(e.weights for e in entries),
        kinds_of_weights=frozenset(e.weights for e in entries),
    )


def _backlog_s(unit: UnitView) -> float:
    """Prefill work that waits on the unit, of all its models: they share the prefill lane."""
    if unit.report.load is None:
        return 0.0
    return sum(
        m.prefill_base_s + m.waiting_tokens * m.prefill_s_per_token for m in unit.report.load.models if m.waiting_tokens
    )


@dataclass(slots=True, eq=False)
class _Sent:
    unit_id: str
    sent_s: float


@dataclass(slots=True, eq=False)
class _Prefill:
    predicted_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A prefill that ended without a first token: reports of between `sent_s` and `left_s` still show it."""

    sent_s: float
    left_s: float
    predicted_s: float


_MOST_GIVEN_UP = 64  # of a unit, while its reports do not come


class UnreportedLoad:
    """`free_at_s` and `requests` are the table's columns, brought up to now: a report misses what was sent since, and
    still counts what has ended since. A first token tells that the prefills before it are done, sooner than any report;
    of a prompt whose request leaves before its own, the rest is not computed. Rows are those of the table of the last
    `rebase`.
    """

    def __init__(self, table: RoutingTable) -> None:
        self._sent: dict[str, _Sent] = {}
        self._counts: dict[str, int] = {}
        self._prefilling: dict[str, dict[str, _Prefill]] = {}  # by unit: those without a first token yet
        self._own_free_at_s: dict[str, float] = {}  # when those are done
        self._given_up: dict[str, deque[_GivenUp]] = {}  # by unit
        self.rebase(table)

    def count(self, unit_id: str) -> int:
        """Requests that this gateway has there now."""
        return self._counts.get(unit_id, 0)

    def __len__(self) -> int:
        return len(self._sent)

    def unit_of(self, request_id: str) -> str:
        """Returns where a request that was sent is."""
        return self._sent[request_id].unit_id

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
        """Notes a first token: what waits there now, of ours, is what was sent and has no token yet. That of a prompt
        which was computed elsewhere tells nothing of what waits.
        """
        unit_id = self._sent[request_id].unit_id
        prefill = self._done_prefilling(unit_id, request_id)
        if prefill is None or not prefill.predicted_s:
            return
        free_at_s = now_s + sum(p.predicted_s for p in self._prefilling.get(unit_id, {}).values())
        if unit_id in self._own_free_at_s:
            self._own_free_at_s[unit_id] = free_at_s
        if (row := self._table.row.get(unit_id)) is not None:
            self.free_at_s[row] = free_at_s

    def left(self, request_id: str, now_s: float) -> None:
        """It ended there, or the unit was lost."""
        entry = self._sent.pop(request_id)
        unit_id = entry.unit_id
        saved_s = self._give_up_prefilling(unit_id, request_id, entry.sent_s, now_s)
        self._counts[unit_id] -= 1
        if not self._counts[unit_id]:
            del self._counts[unit_id]
        row = self._table.row.get(unit_id)
        if row is not None:
            self.requests[row] -= 1.0
            self.free_at_s[row] -= saved_s

    def rebase(self, table: RoutingTable) -> None:
        """Brings the columns of a new table up to now."""
        self._table = table
        self.free_at_s: Floats = table.free_at_s.copy()
        self.requests: Floats = table.requests.copy()
        for entry in self._sent.values():
            row = table.row.get(entry.unit_id)
            if row is not None and entry.sent_s > table.reported_s[row]:
                self.requests[row] += 1.0
        self._forget_given_up()
        for unit_id in self._prefilling.keys() | self._given_up.keys():
            if (row := table.row.get(unit_id)) is not None:
                self.free_at_s[row] = self._free_at_s(unit_id, row)
        own = np.fromiter((self.count(unit_id) for unit_id in table.unit_ids), float, len(table.unit_ids))
        np.maximum(self.requests, own, out=self.requests)  # a unit whose reports stopped has at least these

    def _free_at_s(self, unit_id: str, row: int) -> float:
        """After our prefills, and what the report shows beyond those of ours that it can show: other gateways' work."""
        reported_s = float(self._table.reported_s[row])
        shown_s = sum(
            p.predicted_s
            for request_id, p in self._prefilling.get(unit_id, {}).items()
            if self._sent[request_id].sent_s <= reported_s
        )
        shown_s += sum(g.predicted_s for g in self._given_up.get(unit_id, ()) if g.sent_s <= reported_s)
        others_s = max(0.0, float(self._table.free_at_s[row]) - reported_s - shown_s)
        return max(self._own_free_at_s.get(unit_id, reported_s), reported_s) + others_s

    def _give_up_prefilling(self, unit_id: str, request_id: str, sent_s: float, now_s: float) -> float:
        """Returns how much sooner our prefills are done there because this one is not completed."""
        prefills = self._prefilling.get(unit_id, {})
        prefill = prefills.get(request_id)
        if prefill is None or not prefill.predicted_s:
            self._done_prefilling(unit_id, request_id)
            return 0.0
        left_s = max(0.0, self._own_free_at_s[unit_id] - now_s)
        done_s = sum(p.predicted_s for p in prefills.values()) - left_s
        for other in sorted(prefills.values(), key=lambda p: (p.due_s <= now_s, p.due_s)):  # as units serve them
            if other is prefill:
                break
            done_s -= other.predicted_s
        saved_s = min(left_s, prefill.predicted_s - min(max(0.0, done_s), prefill.predicted_s))
        self._own_free_at_s[unit_id] -= saved_s
        self._done_prefilling(unit_id, request_id)
        given_up = self._given_up.setdefault(unit_id, deque(maxlen=_MOST_GIVEN_UP))
        given_up.append(_GivenUp(sent_s, now_s, prefill.predicted_s))
        return saved_s

    def _forget_given_up(self) -> None:
        """Forgets what reports do not show any more."""
        for unit_id, given_up in list(self._given_up.items()):
            row = self._table.row.get(unit_id)
            while given_up and (row is None or given_up[0].left_s <= self._table.reported_s[row]):
                given_up.popleft()
            if not given_up:
                del self._given_up[unit_id]

    def _done_prefilling(self, unit_id: str, request_id: str) -> _Prefill | None:
        """None if it was done before."""
        of_unit = self._prefilling.get(unit_id, {})
        prefill = of_unit.pop(request_id, None)
        if not of_unit:
            self._prefilling.pop(unit_id, None)
            self._own_free_at_s.pop(unit_id, None)
        return prefill

    def _add(self, entry: _Sent, prefill_s: float) -> None:
        row = self._table.row.get(entry.unit_id)
        if row is not None:
            self.requests[row] += 1.0
            self.free_at_s[row] = max(self.free_at_s[row], entry.sent_s) + prefill_s
