"""Which unit takes a request."""

import zlib
from collections.abc import Mapping, Set
from dataclasses import dataclass

from pdmux_actor.lease import ModelPhase, UnitReport
from router.view import FleetView, UnitView


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitChoice:
    unit_id: str
    endpoint: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoad:
    """Requests this gateway has on each unit: now, and when the view arrived. A report misses their difference."""

    now: Mapping[str, int]
    at_view: Mapping[str, int]


def choose_unit(
    view: FleetView,
    model: str,
    *,
    own: OwnLoad,
    needed_tokens: int = 0,
    avoid: Set[str] = frozenset(),
    stale_after_s: float = 5.0,
    salt: str = "",
) -> UnitChoice | None:
    """The least loaded unit that has `model` ready with room for `needed_tokens` of context, or None.

    Units in `avoid` are left out. A unit whose report is older than `stale_after_s` is taken only if no other is left.
    Ties go by a hash of `salt` (the gateway's name) and the unit, so gateways do not all pick the same one.
    """
    best: tuple[tuple[bool, float, int, str], UnitChoice] | None = None
    for unit in view.units:
        report = unit.report
        if report.unit_id in avoid:
            continue
        max_model_len = _ready_length(report, model)
        if max_model_len is None or max_model_len < needed_tokens:
            continue
        tie = zlib.crc32(f"{salt}/{report.unit_id}".encode())
        rank = (unit.age_s > stale_after_s, load_of(unit, own), tie, report.unit_id)
        if best is None or rank < best[0]:
            best = (
                rank,
                UnitChoice(unit_id=report.unit_id, endpoint=report.endpoint, max_model_len=max_model_len),
            )
    return None if best is None else best[1]


def load_of(unit: UnitView, own: OwnLoad) -> float:
    """Requests per GPU, of all models: they share the device. Never less than what this gateway itself has there."""
    report = unit.report
    reported = sum(m.running + m.waiting for m in report.load.models) if report.load is not None else 0
    own_now = own.now.get(report.unit_id, 0)
    since = own_now - own.at_view.get(report.unit_id, 0)
    return max(reported + since, own_now) / max(1, report.num_gpus)


def _ready_length(report: UnitReport, model: str) -> int | None:
    for status in report.models:
        if status.model == model and status.phase is ModelPhase.READY:
            return status.max_model_len
    return None
