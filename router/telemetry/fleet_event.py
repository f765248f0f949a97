"""Defines what the flight recorder keeps: one structured event for each thing that happened to a fleet."""

from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """docs/events.md says of each when it is recorded."""

    CONTROLLER_STARTED = "controller_started"
    SERVE_SILENT = "serve_silent"
    SERVE_BACK = "serve_back"
    STATE_NOT_KEPT = "state_not_kept"
    STATE_KEPT = "state_kept"
    PLAN = "plan"
    KEPT = "kept"
    SHADOW = "shadow"
    SCALE = "scale"
    MOVE = "move"
    OUT = "out"
    WEIGHTS = "weights"
    LEASE = "lease"
    UNIT_JOINED = "unit_joined"
    UNIT_RESTARTED = "unit_restarted"
    UNIT_LEFT = "unit_left"
    UNIT_LOST = "unit_lost"
    MODEL_LOADING = "model_loading"
    MODEL_READY = "model_ready"
    MODEL_STALLED = "model_stalled"
    MODEL_FAILED = "model_failed"
    MODEL_GONE = "model_gone"
    REQUEST_MOVED = "request_moved"
    REQUEST_FAILED = "request_failed"
    REQUEST_SHED = "request_shed"
    SLO_MISSED = "slo_missed"


OF_REQUESTS = frozenset(
    {EventKind.REQUEST_MOVED, EventKind.REQUEST_FAILED, EventKind.REQUEST_SHED, EventKind.SLO_MISSED}
)
"""Kinds that gateways record; the control loop records the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """`at_s` is the time of day, in seconds since 1970. `unit`, `model` and `request_id` are empty where it concerns
    none, or several. `took_s`: of a load, until it was ready. `count` events of a kind and a model that came too thick
    to be kept one by one are one.
    """

    at_s: float
    kind: EventKind
    text: str
    unit: str = ""
    model: str = ""
    request_id: str = ""
    took_s: float | None = None
    count: int = 1
