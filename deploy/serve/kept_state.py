"""Keeps the state of a control loop in the store that the fleet file names, by the time of day: a successor has another
clock.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy.control.control_state import FORMAT, ControlState, cordons_alone
from deploy.control.cordons import Cordons
from deploy.control.flight_log import FORMAT as EVENT_FORMAT
from deploy.control.flight_log import SEGMENTS, STREAMS, EventSegment, FlightLog, document_name
from deploy.control.key_usages import FORMAT as USAGE_FORMAT
from deploy.control.key_usages import KeptUsage
from deploy.environment import state_folder
from deploy.errors import OptionNotUsable
from deploy.fleet_file.section import StateSection
from deploy.state.cluster_store import ClusterStore
from deploy.state.file_store import FileStore
from deploy.state.state_store import StateNotKept, StateStore
from deploy.state.write_behind import WriteBehind
from router.lived_clock import LivedClock
from router.telemetry.fleet_event import EventKind

_NAME = "control loop"
_USAGE = "key usage"
_STALE_S = 3600.0
_RENEW_S = 60.0  # of a state in which nothing but time has changed

Tell = Callable[[float, EventKind, str], None]
"""Records an event, with its time."""


def _to_nobody(now_s: float, kind: EventKind, text: str) -> None:
    """Is told to none."""


class KeptState:
    """The state of one fleet's control loop. Other documents of the same store go through `documents`."""

    def __init__(
        self, name: str, section: StateSection, documents: WriteBehind, clock: LivedClock, tell: Tell = _to_nobody
    ) -> None:
        """`clock` is the control loop's. `tell` hears when the store takes nothing any more, and when it does again."""
        self._of = (name, section)
        self._tell = tell
        self.is_told_unkept = False
        self.documents = documents
        self._has_usage = False
        self._before: ControlState | None = None
        self._kept: ControlState | None = None
        self._clock = clock

    def is_of(self, name: str, section: StateSection) -> bool:
        return self._of == (name, section)

    @property
    def problem(self) -> str:
        """Returns why the state is not kept; "" where it is."""
        return self.documents.problem

    def load(self) -> ControlState | None:
        """Returns what the control loop before left, with its times on this process's clock; None when there is none or
        it is an hour old: demand and plan of a fleet that has stood still for so long say little of what comes.
        """
        found = self._found()
        if found is None:
            return None
        state = found.shifted(-self._clock.epoch_s())
        ahead_s = state.noted_s - self._clock.now_s()
        if -ahead_s > _STALE_S:
            return None
        return state.shifted(-max(0.0, ahead_s))  # a clock that was set back

    def load_cordons(self) -> Cordons:
        """Returns those that were in force then, however long ago: they hold until somebody ends them."""
        found = self._found()
        return Cordons() if found is None else found.cordons

    def _found(self) -> ControlState | None:
        self._before = self.documents.load(_NAME, ControlState, format=FORMAT)
        return self._before

    def keep_cordons(self, cordons: Cordons) -> None:
        """Returns at once. Before a control loop has a state of its own: they go with what was found, or alone."""
        before = self._before or cordons_alone()
        self.documents.keep(_NAME, replace(before, cordons=cordons, is_plan_due=True), format=FORMAT)

    def keep(self, state: ControlState) -> None:
        """Returns at once. What is the same as before, but for the time, is written once a minute."""
        kept = self._kept
        if kept is None or replace(kept, noted_s=state.noted_s) != state or state.noted_s - kept.noted_s >= _RENEW_S:
            self._kept = state
            self.documents.keep(_NAME, state.shifted(self._clock.epoch_s()), format=FORMAT)

    def load_usage(self) -> KeptUsage | None:
        return self.documents.load(_USAGE, KeptUsage, format=USAGE_FORMAT)

    def keep_usage(self, usage: KeptUsage) -> None:
        """Returns at once. As long as no key has used anything, nothing is written."""
        if usage.keys or self._has_usage:
            self.documents.keep(_USAGE, usage, format=USAGE_FORMAT)
        self._has_usage = bool(usage.keys)

    def load_events(self, log: FlightLog) -> None:
        for stream in STREAMS:
            names = [document_name(stream, place) for place in range(SEGMENTS)]
            found = (self.documents.load(name, EventSegment, format=EVENT_FORMAT) for name in names)
            log.restore(stream, [segment for segment in found if segment is not None])

    def keep_events(self, log: FlightLog) -> None:
        """Returns at once. Tells, once, that the store does not take what came before."""
        problem = self.problem
        if bool(problem) != self.is_told_unkept:
            self.is_told_unkept = bool(problem)
            kind = EventKind.STATE_NOT_KEPT if problem else EventKind.STATE_KEPT
            self._tell(self._clock.now_s(), kind, problem or "state is kept again")
        for name, segment in log.fresh():
            self.documents.keep(name, segment, format=EVENT_FORMAT)

    def close(self) -> None:
        self.documents.close()


def kept_state(
    name: str, section: StateSection, clock: LivedClock, tell: Tell = _to_nobody, *, after: KeptState | None = None
) -> KeptState:
    """`after`: whose place it takes. What that one has told of is over."""
    state = KeptState(name, section, WriteBehind(lambda: _store(name, section)), clock, tell)
    state.is_told_unkept = after is not None and after.is_told_unkept
    return state


def _store(name: str, section: StateSection) -> StateStore:
    """Raises StateNotKept."""
    if section.store == "cluster":
        return ClusterStore(name)
    try:
        folder = state_folder() if section.folder is None else Path(section.folder)
    except OptionNotUsable as error:
        raise StateNotKept(f"{error}, or state.folder") from error
    return FileStore(folder / f"{name}.sqlite3")
