"""Tells an engine that works from one that hangs, by what it says of itself (sans-I/O)."""

from dataclasses import dataclass, field

import msgspec

from pdmux_actor.messages import LaunchStatus, LoadReport

_Launch = tuple[str, float]  # lane and take-off: no other launch has both
_NOTHING_IN_FLIGHT: _Launch = ("none", 0.0)


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine is suspected, later hung, when its loop has said nothing for `suspect_s`, later `kill_s`; or when a
    launch has been in flight for so long and for `late_factor` times what was expected, at most `late_max_s` more than
    that; or when it has had work and nothing in flight for so long. A model loads or leaves within `load_s`.
    """

    suspect_s: float = 3.0
    kill_s: float = 10.0
    late_factor: float = 20.0
    late_max_s: float = 60.0
    load_s: float = 3600.0


@dataclass(slots=True, eq=False)
class EngineWatch:
    """Counts only time that the watcher itself has lived through, tick by tick: a machine that was suspended, a clock
    that jumped or a watcher that was stopped makes nobody late. Armed by the first report.
    """

    settings: WatchSettings
    _silent_s: float = 0.0
    _in_flight_s: dict[_Launch, float] = field(default_factory=dict)
    _launches: tuple[LaunchStatus, ...] = ()
    _steps_total: int = 0
    _is_armed: bool = False
    _was_suspected: bool = False

    def hear(self, report: LoadReport) -> None:
        self._is_armed = True
        self._silent_s = 0.0
        before = self._in_flight_s if report.steps_total == self._steps_total else {}
        keys = [_key(launch) for launch in report.launches]
        if not keys and report.has_work:
            keys = [_NOTHING_IN_FLIGHT]
        # A launch may last while the other lane completes many; work that waits for its turn may not wait for a step.
        self._in_flight_s = {
            key: (before if key == _NOTHING_IN_FLIGHT else self._in_flight_s).get(key, 0.0) for key in keys
        }
        self._launches = report.launches
        self._steps_total = report.steps_total

    def hear_tokens(self) -> None:
        """The loop turned, although its report may still be on its way."""
        self._silent_s = 0.0

    def live(self, elapsed_s: float) -> None:
        if not self._is_armed:
            return
        self._silent_s += elapsed_s
        for key in self._in_flight_s:
            self._in_flight_s[key] += elapsed_s

    def suspicion(self) -> str | None:
        """Returns why the engine is suspected; None when it is not."""
        return self._complaint(self.settings.suspect_s)

    def new_suspicion(self) -> str | None:
        """Returns why the engine is suspected, where it was not at the last call."""
        reason, was_suspected = self.suspicion(), self._was_suspected
        self._was_suspected = reason is not None
        return None if was_suspected else reason

    def hang(self) -> str | None:
        """Returns why it is given up; None when it is not."""
        return self._complaint(self.settings.kill_s)

    def _complaint(self, bound_s: float) -> str | None:
        if self._silent_s > bound_s:
            return f"its loop has not turned for {self._silent_s:.1f} s"
        for launch in self._launches:
            lasted_s = self._in_flight_s[_key(launch)]
            if lasted_s > self._allowed_s(launch, bound_s):
                return (
                    f"a launch on the {launch.lane} lane has not completed for {lasted_s:.1f} s, "
                    f"{launch.expected_s:.3g} s were expected"
                )
        idle_s = self._in_flight_s.get(_NOTHING_IN_FLIGHT, 0.0)
        return f"it has had work and launched nothing for {idle_s:.1f} s" if idle_s > bound_s else None

    def _allowed_s(self, launch: LaunchStatus, bound_s: float) -> float:
        latest_s = launch.expected_s + self.settings.late_max_s
        late_s = min(self.settings.late_factor * launch.expected_s, latest_s) if launch.is_learned else latest_s
        return max(bound_s, late_s)


def _key(launch: LaunchStatus) -> _Launch:
    return launch.lane, launch.took_off_s
