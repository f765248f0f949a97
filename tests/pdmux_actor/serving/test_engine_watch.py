from dataclasses import replace

import pytest
from engine_rig import VirtualEngine, make_request

from pdmux_actor.executor.simulated import SimulatedExecutor
from pdmux_actor.messages import LaunchStatus, LoadReport, ModelLoad
from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import PrefillSlice
from pdmux_actor.serving.engine_watch import EngineWatch, WatchSettings

SETTINGS = WatchSettings(suspect_s=3.0, kill_s=10.0, late_factor=20.0, late_max_s=60.0)
TICK_S = 0.25


def report(*launches: LaunchStatus, steps_total: int = 0, waiting: int = 0) -> LoadReport:
    model = ModelLoad(
        model="a",
        running=0,
        waiting=waiting,
        used_blocks=0,
        quota_blocks=1,
        preemptions_total=0,
        prompt_tokens_total=0,
        output_tokens_total=0,
    )
    return LoadReport(
        models=(model,),
        total_blocks=1,
        free_blocks=1,
        prefill_sms=1,
        decode_sms=1,
        steps_total=steps_total,
        launches=launches,
    )


def launch(expected_s: float, *, lane: str = "prefill", took_off_s: float = 5.0, is_learned: bool = True):
    return LaunchStatus(lane=lane, took_off_s=took_off_s, expected_s=expected_s, is_learned=is_learned)


def watch_of(first: LoadReport) -> EngineWatch:
    watch = EngineWatch(SETTINGS)
    watch.hear(first)
    return watch


def lived(watch: EngineWatch, span_s: float, *reports: LoadReport) -> EngineWatch:
    """Reports come in turn, one per tick, the last one over and over; without any the engine is silent."""
    for tick in range(round(span_s / TICK_S)):
        watch.live(TICK_S)
        if reports:
            watch.hear(reports[min(tick, len(reports) - 1)])
    return watch


def test_watch__loop_silent__is_suspected_then_hung_and_forgiven_when_it_speaks() -> None:
    watch = watch_of(report())
    assert lived(watch, 3.0).suspicion() is None
    assert "has not turned" in (lived(watch, 0.5).suspicion() or "")
    assert lived(watch, 6.5).hang() is None
    assert "has not turned" in (lived(watch, 0.5).hang() or "")

    watch.hear(report())

    assert watch.suspicion() is None


def test_watch__before_the_first_report__judges_nothing() -> None:
    """A CUDA context or a checkpoint may take minutes."""
    assert lived(EngineWatch(SETTINGS), 600.0).suspicion() is None


def test_watch__tokens_come_but_no_report__is_no_silence() -> None:
    watch = watch_of(report())
    for _ in range(100):
        watch.live(TICK_S)
        watch.hear_tokens()

    assert watch.suspicion() is None


@pytest.mark.parametrize(
    ("expected_s", "is_learned", "suspected_s", "hung_s"),
    [
        (0.01, True, 3.0, 10.0),  # the bounds from below
        (0.4, True, 8.0, 10.0),  # 20 times
        (2.0, True, 40.0, 40.0),
        (100.0, True, 160.0, 160.0),  # a slice of 100,000 tokens on a CPU: 60 s more than expected
        (0.01, False, 60.01, 60.01),  # the first of its kind: kernels are compiled, the prediction is a guess
    ],
)
def test_watch__launch_overdue__is_suspected_then_hung(expected_s, is_learned, suspected_s, hung_s) -> None:
    told = report(launch(expected_s, is_learned=is_learned))

    assert lived(watch_of(told), suspected_s, told).suspicion() is None
    assert "prefill lane" in (lived(watch_of(told), suspected_s + 0.5, told).suspicion() or "")
    assert lived(watch_of(told), hung_s, told).hang() is None
    assert "prefill lane" in (lived(watch_of(told), hung_s + 0.5, told).hang() or "")


def test_watch__one_lane_hangs_while_the_other_steps__is_seen() -> None:
    watch = watch_of(report(launch(0.01)))
    steps = [report(launch(0.01), launch(0.01, lane="decode", took_off_s=i), steps_total=i) for i in range(60)]

    assert "prefill lane" in (lived(watch, 15.0, *steps).hang() or "")


def test_watch__launches_follow_each_other__nobody_is_late() -> None:
    watch = watch_of(report())

    assert lived(watch, 60.0, *(report(launch(0.2, took_off_s=i)) for i in range(240))).suspicion() is None


def test_watch__work_waits_and_nothing_is_launched__is_seen() -> None:
    watch = watch_of(report())
    stuck = report(waiting=1, steps_total=7)

    assert "launched nothing" in (lived(watch, 11.0, stuck).hang() or "")
    assert lived(watch, 11.0, *(replace(stuck, steps_total=i) for i in range(100))).suspicion() is None
    assert lived(watch, 11.0, report(steps_total=7)).suspicion() is None, "no work is no fault"


class HungPrefill(SimulatedExecutor):
    """As a GPU whose kernel never ends: the loop turns, the launch does not land."""

    def _is_done(self, lane):
        return not isinstance(self._lanes[lane].launch, PrefillSlice) and super()._is_done(lane)

    def next_end_s(self):
        return self.now() + TICK_S


def test_watch__of_a_real_engine_whose_lane_hangs__says_which() -> None:
    engine = VirtualEngine([(0.0, Arrival(make_request("r")))], executor_type=HungPrefill)
    watch = EngineWatch(SETTINGS)
    for _ in range(400):
        engine.loop.turn()
        watch.hear(engine.scheduler.load_report())
        watch.live(TICK_S)

    assert "prefill lane" in (watch.hang() or "")


def test_watch__of_a_real_engine_at_work__suspects_nothing() -> None:
    arrivals = [(0.1 * i, Arrival(make_request(f"r{i}", max_tokens=8))) for i in range(50)]
    engine = VirtualEngine(arrivals)
    watch = EngineWatch(SETTINGS)
    while not engine.is_over:
        engine.loop.turn()
        watch.hear(engine.scheduler.load_report())
        watch.live(TICK_S)  # turns are milliseconds long: it lives much faster than the engine
        assert watch.suspicion() is None
