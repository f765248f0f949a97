"""The product's scheduler and policies in virtual time, with step times measured on this machine.

For a machine that is too busy for a measurement, and to see what a policy does without any noise: the same requests,
policies and bisection as on the real engine, in a fraction of the time. It is a model; the real engine is the measure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from engine_run import BLOCK_BYTES, MAX_MODEL_LEN, GiveUp, RequestTimes, RunOutcome, TimedRequest
from lane_activity import ObservedExecutor
from solo_steps import SoloSteps

from pdmux_actor.engine import EngineLoop, build_scheduler
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.inbox import Timetable
from pdmux_actor.messages import LoadReport, TokenEvent
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.latency import ChunkShape
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class StepLatency:
    """profiler.latency.LatencyModel: sums of a constant and terms linear in sequences, their contexts and new tokens.

    One model, shares of 1 to all cores; coefficients by number of cores.
    """

    base_s: Mapping[int, float]
    per_sequence_s: Mapping[int, float]
    per_context_token_s: Mapping[int, float]
    per_new_token_s: Mapping[int, float]
    per_seen_pair_s: Mapping[int, float]

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.mixed_s(spec, (), context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        new_tokens = sum(chunk.new_tokens for chunk in chunks)
        pairs = sum(chunk.new_tokens * (chunk.context_tokens + chunk.new_tokens / 2) for chunk in chunks)
        return (
            self.base_s[sms]
            + self.per_sequence_s[sms] * len(context_tokens)
            + self.per_context_token_s[sms] * sum(context_tokens)
            + self.per_new_token_s[sms] * new_tokens
            + self.per_seen_pair_s[sms] * pairs
        )


class ModelledSteps:
    """solo_steps.StepTimes by a `StepLatency`: targets and budgets of the same world as the virtual steps."""

    def __init__(self, latency: StepLatency, spec: ModelSpec, num_cores: int) -> None:
        self._latency = latency
        self._spec = spec
        self._cores = num_cores

    def step_s(self, batch: int, context_tokens: int) -> float:
        return self._latency.decode_s(self._spec, [context_tokens] * batch, self._cores)

    def mixed_s(self, batch: int, context_tokens: int, chunk_tokens: int) -> float:
        return self._latency.mixed_s(self._spec, [ChunkShape(chunk_tokens)], [context_tokens] * batch, self._cores)


def measure_step_latency(solo: SoloSteps) -> StepLatency:
    """Least squares over a dozen launches per number of cores, each with its relative error as weight."""
    fitted: dict[int, list[float]] = {}
    for cores in range(1, solo.device.num_sms + 1):
        rows, taken_s = [], []
        for batch, context in ((1, 64), (1, 512), (8, 64), (8, 512), (24, 128)):
            rows.append([1.0, batch, batch * context, 0.0, 0.0])
            taken_s.append(solo.decode_s(batch, context, cores))
        for tokens in (16, 64, 256, 768):
            rows.append([1.0, 0.0, 0.0, tokens, tokens * tokens / 2])
            taken_s.append(solo.prefill_s(tokens, cores))
        weights = 1 / np.array(taken_s)
        solution = np.linalg.lstsq(np.array(rows) * weights[:, None], np.array(taken_s) * weights, rcond=None)[0]
        fitted[cores] = [max(0.0, float(value)) for value in solution]
    columns = [{cores: values[column] for cores, values in fitted.items()} for column in range(5)]
    return StepLatency(*columns)


class VirtualSession:
    """Like `EngineSession`, in virtual time: what the real engine would do if steps took what was measured."""

    def __init__(
        self,
        *,
        checkpoints: Mapping[str, Path],
        policy: str,
        settings: SchedulerSettings,
        device: DeviceSpec,
        latency: StepLatency,
        kv_pool_bytes: int = 256 << 20,
        quota_shares: Mapping[str, float] | None = None,
    ) -> None:
        self.policy = policy
        self.device = device
        self._clock = VirtualClock()
        simulated = SimulatedExecutor(
            device=device,
            latency=latency,
            total_blocks=kv_pool_bytes // BLOCK_BYTES,
            block_bytes=BLOCK_BYTES,
            clock=self._clock,
        )
        self._executor = ObservedExecutor(simulated)
        self._scheduler = build_scheduler(
            self._executor, policy=policy, settings=settings, latency=RooflineLatency(device)
        )
        self._attach = []
        for model, path in checkpoints.items():
            info = simulated.load_model(model, str(path), revision=None, dtype="bfloat16", max_model_len=MAX_MODEL_LEN)
            share = 1 / len(checkpoints) if quota_shares is None else quota_shares[model]
            self._attach.append(AttachModel(info, int(simulated.total_blocks * share)))

    def run(self, requests: Sequence[TimedRequest], *, give_up: GiveUp = lambda times: False) -> RunOutcome:
        self._executor.start_recording()
        started_s = self._clock.now()
        times = {
            timed.request.request_id: RequestTimes(
                timed.request.model, timed.request.slo, started_s + timed.at_s, timed.request.sampling.max_tokens
            )
            for timed in requests
        }
        unanswered, reports = set(times), list[LoadReport]()

        def take(events: Sequence[TokenEvent]) -> None:
            for event in events:
                assert event.error is None, event.error
                times[event.request_id].token_times_s += [self._clock.now()] * len(event.tokens)
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
