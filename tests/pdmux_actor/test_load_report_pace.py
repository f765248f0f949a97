import itertools

from engine_rig import VirtualEngine, make_request

from pdmux_actor.engine import EngineLoop
from pdmux_actor.messages import IDLE_REPORT_EVERY_S
from pdmux_actor.scheduling.events import Arrival


def test_engine_loop__with_and_without_work__reports_often_and_rarely() -> None:
    came_s = 10.3
    rig = VirtualEngine([(came_s, Arrival(make_request("r", max_tokens=400)))])
    reports = []
    loop = EngineLoop(
        executor=rig.executor,
        scheduler=rig.scheduler,
        events=rig.timetable,
        outbox=lambda events: None,
        on_load_report=lambda report: reports.append((rig.executor.now(), report)),
    )
    while rig.executor.now() < 20.0:
        loop.turn()

    times_s = [at_s for at_s, _ in reports]
    busy_s = [at_s for at_s, report in reports if report.has_work]
    assert busy_s[-1] - busy_s[0] > 0.4, "the request takes a while"
    assert came_s <= busy_s[0] <= came_s + 0.26, "work is told of soon, whenever it comes"
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert max(gaps_s) <= IDLE_REPORT_EVERY_S + 1e-6
    assert len([t for t in times_s if 1.0 < t < came_s]) == int(came_s - 1.0)
    assert max(after - before for before, after in itertools.pairwise(busy_s)) < 0.3
