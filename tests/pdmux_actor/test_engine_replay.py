import threading

import pytest
from engine_rig import BLOCK_BYTES, INFOS, TOTAL_BLOCKS, LinearLatency, make_device, make_request
from recorded_run import RecordingEvents, RecordingExecutor, ReplayEvents, ReplayExecutor, Tape

from pdmux_actor.engine import EngineLoop, Inbox, Timetable, build_scheduler
from pdmux_actor.executor.simulated import RealClock, SimulatedExecutor
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel, Stop
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings


@pytest.mark.parametrize(("policy", "decode_lanes"), [*((policy, 1) for policy in sorted(POLICIES)), ("adbs", 3)])
def test_replay__real_time_run__same_decisions(policy, decode_lanes):
    tape = Tape()
    clock = RealClock()
    simulated = SimulatedExecutor(
        device=make_device(4), latency=LinearLatency(), total_blocks=TOTAL_BLOCKS, block_bytes=BLOCK_BYTES, clock=clock
    )
    start_s = clock.now()
    arrivals = [
        (start_s + 0.004 * i, Arrival(make_request(f"r{i}", "abc"[i % 3], 5 + 13 * i % 80, 3 + i % 7)))
        for i in range(18)
    ]
    models = [(0.0, AttachModel(INFOS[m], 160)) for m in "abc"]
    timetable = Timetable([*models, *arrivals, (start_s + 0.05, Abort("r10")), (start_s + 0.6, Stop())])
    recorded = _loop(RecordingExecutor(simulated, tape), RecordingEvents(timetable, tape), policy, decode_lanes)
    recorded.run()

    replayed = _loop(ReplayExecutor(tape, simulated), ReplayEvents(tape), policy, decode_lanes)
    replayed.run()

    decisions = recorded.scheduler.log.decisions()
    assert len(decisions) > 20
    assert replayed.scheduler.log.decisions() == decisions
    assert max(d.decode_lane for d in decisions) == decode_lanes - 1


def test_engine_loop__events_from_another_thread__wake_it():
    clock = RealClock()
    executor = SimulatedExecutor(
        device=make_device(), latency=LinearLatency(), total_blocks=TOTAL_BLOCKS, block_bytes=BLOCK_BYTES, clock=clock
    )
    inbox = Inbox(executor.wake)
    got = []
    done = threading.Event()

    def outbox(events):
        got.extend(events)
        if any(e.finish for e in events):
            done.set()

    loop = EngineLoop(
        executor=executor,
        scheduler=build_scheduler(executor, policy="mux", settings=SchedulerSettings(), latency=LinearLatency()),
        events=inbox,
        outbox=outbox,
    )
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    inbox.put(AttachModel(INFOS["a"], 160))
    inbox.put(Arrival(make_request("r", max_tokens=3)))

    assert done.wait(10)
    inbox.put(Stop())
    thread.join(10)
    assert not thread.is_alive()
    assert sum(len(e.tokens) for e in got) == 3


def _loop(executor, events, policy, decode_lanes):
    settings = SchedulerSettings(decode_lanes=decode_lanes)
    scheduler = build_scheduler(executor, policy=policy, settings=settings, latency=LinearLatency())
    return EngineLoop(executor=executor, scheduler=scheduler, events=events, outbox=lambda events: None)
