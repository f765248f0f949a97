"""The product's scheduler and policies in virtual time, with step times measured on this machine.

For a machine that is too busy for a measurement, and to see what a policy does without any noise: the same requests,
policies and bisection as on the real engine, in a fraction of the time. It is a model; the real engine is the measure.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.engine_session import BLOCK_BYTES, GiveUp, RunOutcome
from engines.lane_activity import ObservedExecutor
from engines.measured_steps import MeasuredSteps
from engines.served_steps import ServedLatency, ServedSteps
from load.request_times import TimedRequest, times_of
from load.workloads import MAX_MODEL_LEN

from pdmux_actor.engine import EngineLoop, Timetable, build_scheduler
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.messages import LoadReport, TokenEvent
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.roofline import RooflineLatency


class VirtualSession:
    """Like `EngineSession`, in virtual time: what the real engine would do if steps took what was measured."""

    def __init__(
        self,
        *,
        checkpoints: Mapping[str, Path],
        policy: str,
        settings: SchedulerSettings,
        steps: MeasuredSteps,
        kv_pool_bytes: int = 256 << 20,
        max_model_len: int = MAX_MODEL_LEN,
        served: ServedSteps | None = None,
    ) -> None:
        """`served`: what an engine in service has shown beyond `steps`."""
        self.policy = policy
        self.device = device = steps.device
        self._clock = VirtualClock()
        simulated = SimulatedExecutor(
            device=device,
            latency=steps.latency if served is None else ServedLatency(steps.latency, served),
            total_blocks=kv_pool_bytes // BLOCK_BYTES,
            block_bytes=BLOCK_BYTES,
            clock=self._clock,
            prefill_slowdown=steps.prefill_slowdown if served is None else served.prefill_slowdown,
            decode_slowdown=steps.decode_slowdown if served is None else served.decode_slowdown,
            host_s=0.0 if served is None else served.host_s,
        )
        self._executor = ObservedExecutor(simulated)
        self._scheduler = build_scheduler(
            self._executor, policy=policy, settings=settings, latency=RooflineLatency(device)
        )
        self._attach = []
        for model, path in checkpoints.items():
            info = simulated.load_model(
                ModelSource(model=model, source=str(path), dtype="bfloat16", max_model_len=max_model_len)
            )
            self._attach.append(AttachModel(info, int(simulated.total_blocks * (1 / len(checkpoints)))))

    def run(self, requests: Sequence[TimedRequest], *, give_up: GiveUp = lambda times: False) -> RunOutcome:
        self._executor.start_recording()
        started_s = self._clock.now()
        times = times_of(requests, started_s)
        unanswered, reports = set(times), list[LoadReport]()

        def take(events: Sequence[TokenEvent]) -> None:
            for event in events:
                assert event.error is None, event.error
                record = times[event.request_id]
                record.token_times_s += [self._clock.now()] * len(event.tokens)
                record.finish = event.finish
                if event.finish is not None:
                    unanswered.discard(event.request_id)

        arrivals = [(started_s + timed.at_s, Arrival(timed.request)) for timed in requests]
        loop = EngineLoop(
            executor=self._executor,
            scheduler=self._scheduler,
            events=Timetable([*((started_s, attach) for attach in self._attach), *arrivals]),
            outbox=take,
            on_load_report=reports.append,
        )
        self._attach = []
        gave_up, next_check_s = False, started_s + 1.0
        while unanswered:
            loop.turn()
            if not gave_up and self._clock.now() >= next_check_s:
                next_check_s = self._clock.now() + 0.5
                gave_up = give_up(list(times.values()))
                if gave_up:
                    break
        if gave_up:
            self._abandon(unanswered)
        return RunOutcome(
            requests=list(times.values()),
            duration_s=self._clock.now() - started_s,
            other_cores=0.0,
            gave_up=gave_up,
            lanes=self._executor.stop_recording(),
            reports=tuple(reports),
        )

    def close(self) -> None:
        self._executor.close()

    def _abandon(self, unanswered: set[str]) -> None:
        """Aborts what runs and lets the launches in flight end."""
        loop = EngineLoop(
            executor=self._executor,
            scheduler=self._scheduler,
            events=Timetable([(self._clock.now(), Abort(request_id)) for request_id in unanswered]),
            outbox=lambda events: None,
        )
        for _ in range(4):
            loop.turn()
