"""A view of the fleet, laid out so that routing over a thousand units is a few operations on arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import ModelLoad
from router.view import FleetView, UnitView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REPORT_LAG_S = 0.3
"""A heartbeat carries an engine's report of up to a quarter of a second ago."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Units that have one model ready. Arrays have one entry per unit; `unit` holds rows of the table.

    A prefill of n tokens takes `base_s + n * per_token_s`; nan where no unit has told yet. `crowded` units have used up
    the model's quota, those that `constrains` can make outputs follow a schema.
    """

    unit: Ints
    position: Mapping[str, int]
    max_model_len: Ints
    base_s: Floats
    per_token_s: Floats
    crowded: npt.NDArray[np.bool_]
    constrains: npt.NDArray[np.bool_]

    @property
    def has_prediction(self) -> bool:
        return bool(not np.isnan(self.per_token_s[0]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTable:
    """Rows are units. `reported_s`: what a report shows had happened by then. `free_at_s`: when the prefill work that
    waited then is done. `requests` are those that ran or waited then.
    """

    unit_ids: tuple[str, ...]
    endpoints: tuple[str, ...]
    row: Mapping[str, int]
    heard_s: Floats
    reported_s: Floats
    free_at_s: Floats
    requests: Floats
    num_gpus: Floats
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
        return cls(
            unit_ids=ids,
            endpoints=tuple(u.report.endpoint for u in units),
            row={unit_id: i for i, unit_id in enumerate(ids)},
            heard_s=heard_s,
            reported_s=reported_s,
            free_at_s=reported_s + backlog_s,
            requests=np.fromiter(requests, float, len(units)),
            num_gpus=np.fromiter((max(1, u.report.num_gpus) for u in units), float, len(units)),
            by_model=_candidates(units),
        )


@dataclass(slots=True, eq=False)
class _Ready:
    row: int
    unit_id: str
    max_model_len: int
    load: ModelLoad | None
    constrains: bool


def _candidates(units: Iterable[UnitView]) -> Mapping[str, Candidates]:
    ready: dict[str, list[_Ready]] = {}
    for row, unit in enumerate(units):
        report = unit.report
        loads = {} if report.load is None else {m.model: m for m in report.load.models}
        for status in report.models:
            if status.phase is ModelPhase.READY and status.max_model_len is not None:
                entry = _Ready(row, report.unit_id, status.max_model_len, loads.get(status.model), report.constrains)
                ready.setdefault(status.model, []).append(entry)
    return {model: _columns(entries) for model, entries in ready.items()}


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
    )


def _backlog_s(unit: UnitView) -> float:
    """Prefill work that waits on the unit, of all its models: they share the prefill lane."""
    if unit.report.load is None:
        return 0.0
    return sum(
        m.prefill_base_s + m.waiting_tokens * m.prefill_s_per_token for m in unit.report.load.models if m.waiting_tokens
    )
