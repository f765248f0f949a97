from dataclasses import replace

from deploy.control.control_state import ControlState, KeptDeaths
from deploy.fleet_file.section import StateSection
from deploy.serve.kept_state import KeptState
from placement.plan import Plan
from router.lived_clock import LivedClock

STATE = ControlState(
    noted_s=100.0,
    wanted="w",
    is_plan_due=False,
    plan=Plan(units=()),
    goal=Plan(units=()),
    asleep=(),
    demand=(),
    used_s={},
    replicas=(),
    moves_s=(),
    deaths=KeptDeaths(slots={}, places=(), loads=(), reasons={}),
    decisions=(),
)


class Documents:
    """Stands where WriteBehind would."""

    def __init__(self) -> None:
        self.kept = []

    def keep(self, name, document, *, format) -> None:
        self.kept.append(document)


def test_kept_state__nothing_but_time_changes__is_written_once_a_minute() -> None:
    documents = Documents()
    state = KeptState("fleet", StateSection(), documents, LivedClock())

    for seconds in range(0, 130, 2):
        state.keep(replace(STATE, noted_s=100.0 + seconds))
    quiet = len(documents.kept)
    state.keep(replace(STATE, noted_s=231.0, asleep=("m",)))
    state.keep(replace(STATE, noted_s=233.0, asleep=("m",)))

    assert quiet == 3
    assert [d.asleep for d in documents.kept[quiet:]] == [("m",)]
    assert documents.kept[0].noted_s > 1e9, "by the time of day, as a successor reads it"
