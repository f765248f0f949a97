"""Tells what happened to a fleet: its events in order, of all or of what belongs to a model, a unit or a request."""

from collections import Counter
from collections.abc import Sequence

from router.telemetry.fleet_event import OF_REQUESTS, EventKind, FleetEvent

_AROUND_S = 30.0  # of a request: what its units did so long before and after
_OF_THE_FLEET = frozenset(
    {EventKind.CONTROLLER_STARTED, EventKind.SERVE_SILENT, EventKind.SERVE_BACK, EventKind.PLAN, EventKind.OUT}
)
_SUMMED_UP = (
    (EventKind.SERVE_SILENT, "silence of Serve", "silences of Serve"),
    (EventKind.UNIT_LOST, "unit lost", "units lost"),
    (EventKind.UNIT_RESTARTED, "unit restarted", "units restarted"),
    (EventKind.MOVE, "move", "moves"),
    (EventKind.REQUEST_MOVED, "request went on elsewhere", "requests went on elsewhere"),
    (EventKind.REQUEST_FAILED, "request failed", "requests failed"),
    (EventKind.REQUEST_SHED, "request refused by overload", "requests refused by overload"),
    (EventKind.SLO_MISSED, "answer late", "answers late"),
)


def story_of(
    events: Sequence[FleetEvent], *, model: str | None = None, unit: str | None = None, request_id: str | None = None
) -> tuple[FleetEvent, ...]:
    """Selects events, which come and go in order. Of a model: its own, those of units that had it, and what concerned
    the fleet; of a unit: its own and what concerned the fleet; of a request: its own, and those of its units around it.
    """
    if request_id is not None:
        return _around_request(events, request_id)
    chosen = events
    if model is not None:
        units = {e.unit for e in events if e.model == model and e.unit}
        chosen = [
            e for e in chosen if e.model == model or (not e.model and (e.unit in units or e.kind in _OF_THE_FLEET))
        ]
    if unit is not None:
        chosen = [e for e in chosen if e.unit == unit or (not e.unit and e.kind in _OF_THE_FLEET)]
    return tuple(chosen)


def unknown_name(
    events: Sequence[FleetEvent], *, model: str | None = None, unit: str | None = None, request_id: str | None = None
) -> str | None:
    """Says which of what was asked for no event names, and what they name instead; None: all are named."""
    asked = (("model", model, "model"), ("unit", unit, "unit"), ("request", request_id, "request_id"))
    for what, name, field in asked:
        known = {getattr(event, field) for event in events} - {""}
        if name is not None and name not in known:
            others = "" if what == "request" or not known else f"; they name {', '.join(sorted(known))}"
            return f"no event names {what} {name!r}{others}"
    return None


def in_short(events: Sequence[FleetEvent]) -> str:
    """Counts what matters to clients and what was done about it."""
    counts = Counter[EventKind]()
    for event in events:
        counts[event.kind] += event.count
    parts = [f"{counts[kind]} {one if counts[kind] == 1 else many}" for kind, one, many in _SUMMED_UP if counts[kind]]
    return ", ".join(parts) or "nothing was lost, moved, refused or late"


def _around_request(events: Sequence[FleetEvent], request_id: str) -> tuple[FleetEvent, ...]:
    own = [e for e in events if e.request_id == request_id]
    if not own:
        return ()
    units, models = {e.unit for e in own if e.unit}, {e.model for e in own}
    since_s, until_s = own[0].at_s - _AROUND_S, own[-1].at_s + _AROUND_S

    def belongs(event: FleetEvent) -> bool:
        if event.request_id == request_id:
            return True
        if event.kind in OF_REQUESTS or not since_s <= event.at_s <= until_s:
            return False
        return event.unit in units or event.model in models or event.kind in _OF_THE_FLEET

    return tuple(e for e in events if belongs(e))
