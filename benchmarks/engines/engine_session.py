"""A real engine on this machine's cores, driven in-process at the times of a workload."""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from engines.lane_activity import LaneActivity, ObservedExecutor
from load.request_times import RequestTimes, TimedRequest, times_of
from load.workloads import MAX_MODEL_LEN

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.base import Executor
from pdmux_actor.executor.lanes import PinnedThreads
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.messages import LoadReport, TokenEvent
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel, SetPolicy, Stop
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.latency import LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec

BLOCK_BYTES = 4096
_DRAIN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """`other_cores`: cores that the rest of the machine kept busy meanwhile. Gaps that never came count as missed."""

    requests: Sequence[RequestTimes]
    duration_s: float
    other_cores: float
    gave_up: bool
    lanes: LaneActivity
    reports: Sequence[LoadReport]

    def of_model(self, model: str) -> "RunOutcome":
        return replace(self, requests=[r for r in self.requests if r.model == model])

    @property
    def gaps_wanted(self) -> int:
        return sum(r.num_tokens_wanted - 1 for r in self.requests)

    @property
    def gap_attainment(self) -> float:
        wanted = self.gaps_wanted
        return sum(r.gaps_within for r in self.requests) / wanted if wanted else 1.0

    @property
    def ttft_attainment(self) -> float:
        return sum(r.ttft_s <= r.slo.ttft_s for r in self.requests) / len(self.requests) if self.requests else 1.0

    @property
    def request_attainment(self) -> float:
        """Share of requests in time: the first token and every gap."""
        return sum(r.is_in_time for r in self.requests) / len(self.requests) if self.requests else 1.0

    @property
    def slo_attainment(self) -> float:
        """Share of requests with a timely first token and 99 % timely gaps."""
        good = sum(
            r.ttft_s <= r.slo.ttft_s and r.gaps_within >= 0.99 * (r.num_tokens_wanted - 1) for r in self.requests
        )
        return good / len(self.requests) if self.requests else 1.0

    @property
    def output_tokens_per_s(self) -> float:
        return sum(len(r.token_times_s) for r in self.requests) / self.duration_s


GiveUp = Callable[[Sequence[RequestTimes]], bool]


class EngineSession:
    """One engine with a policy and settings, kept from run to run so that its predictions are as warm as in service.

    Models have equal shares of the pool. `executor` None makes one for this
    machine's cores; one that is given already holds the models `held`. What `steps` say of launches is noted with them.
    """

    def __init__(
        self,
        *,
        checkpoints: Mapping[str, Path],
        policy: str,
        settings: SchedulerSettings,
        device: DeviceSpec | None = None,
        num_cores: int | None = None,
        kv_pool_bytes: int = 256 << 20,
        max_model_len: int = MAX_MODEL_LEN,
        dtype: str = "bfloat16",
        executor: Executor | None = None,
        held: Sequence[ModelInfo] = (),
        steps: LatencyModel | None = None,
        threads: PinnedThreads | None = None,
    ) -> None:
        executor = executor or TorchCpuExecutor(
            kv_pool_bytes=kv_pool_bytes,
            block_bytes=BLOCK_BYTES,
            num_cores=num_cores,
            default_dtype=dtype,
            device=device,
            threads=threads,
        )
        self.policy = policy
        self.device = executor.device
        self._executor = ObservedExecutor(executor, steps)
        self._produced: queue.SimpleQueue[tuple[float, Sequence[TokenEvent]]] = queue.SimpleQueue()
        self._reports: list[LoadReport] = []
        self._loop, self._inbox = build_engine(
            self._executor,
            policy=policy,
            settings=settings,
            latency=RooflineLatency(executor.device),
            outbox=lambda events: self._produced.put((time.perf_counter(), events)),
            on_load_report=self._reports.append,
        )
        self._ready: list[str] = []
        for model, path in checkpoints.items():
            info = executor.load_model(ModelSource(model=model, source=str(path), max_model_len=max_model_len))
            self._attach(info, int(executor.total_blocks * (1 / len(checkpoints))))
        for info in held:
            self._attach(info, executor.total_blocks // len(held))
        self._num_models = len(checkpoints) + len(held)
        self._thread = threading.Thread(target=self._loop.run, name=f"engine-{policy}", daemon=True)
        self._thread.start()

    def _attach(self, info: ModelInfo, quota_blocks: int) -> None:
        self._inbox.put(AttachModel(info, quota_blocks, lambda: self._ready.append(info.model)))

    def wait_until_attached(self) -> None:
        """Until the engine has all models ready; on a GPU it captures decode steps first."""
        while len(self._ready) < self._num_models:
            if not self._thread.is_alive():
                raise RuntimeError("the engine thread has died; its traceback is above")
            time.sleep(0.01)

    def change_policy(self, policy: str) -> None:
        """Between runs. What was learned and captured stays."""
        self.policy = policy
        self._inbox.put(SetPolicy(policy))

    def run(
        self,
        requests: Sequence[TimedRequest],
        *,
        give_up: GiveUp = lambda times: False,
        tail_s: float | None = None,
    ) -> RunOutcome:
        """Sends the requests at their times and waits for the answers. `give_up` ends a run that cannot succeed.

        With `tail_s` a run ends so long after the last request was due: what is not answered by then counts for the
        tokens that it has, or not at all if its first token was not due yet.
        """
        self._executor.start_recording()
        self._reports.clear()
        own, others = psutil.Process(), _busy_cpu_s()
        own_before_s, started_s = _cpu_s(own), time.perf_counter()
        times = times_of(requests, started_s)
        cut_s = math.inf if tail_s is None or not requests else started_s + requests[-1].at_s + tail_s
        gave_up = self._drive(requests, times, started_s, give_up, cut_s)
        duration_s = time.perf_counter() - started_s
        other_s = _busy_cpu_s() - others - (_cpu_s(own) - own_before_s)
        return RunOutcome(
            requests=list(times.values()),
            duration_s=duration_s,
            other_cores=max(0.0, other_s / duration_s),
            gave_up=gave_up,
            lanes=self._executor.stop_recording(),
            reports=tuple(self._reports),
        )

    def close(self) -> None:
        self._inbox.put(Stop())
        self._thread.join()

    def _drive(
        self,
        requests: Sequence[TimedRequest],
        times: dict[str, RequestTimes],
        started_s: float,
        give_up: GiveUp,
        cut_s: float,
    ) -> bool:
        coming, unanswered, gave_up = list(reversed(requests)), set(times), False
        last_due_s = started_s + (requests[-1].at_s if requests else 0.0)
        next_check_s = started_s + 1.0
        while unanswered:
            now_s = time.perf_counter()
            while coming and started_s + coming[-1].at_s <= now_s:
                self._inbox.put(Arrival(coming.pop().request))
            if now_s >= cut_s and not coming:
                cut_s = math.inf
                for request_id in unanswered:
                    _cut(times, request_id, now_s)
                    self._inbox.put(Abort(request_id))
            if not gave_up and now_s >= next_check_s:
                next_check_s = now_s + 0.5
                gave_up = now_s > last_due_s + _DRAIN_LIMIT_S or give_up(list(times.values()))
                if gave_up:
                    unanswered -= {timed.request.request_id for timed in coming}
                    coming = []
                    for request_id in unanswered:
                        self._inbox.put(Abort(request_id))
            wait_s = min(0.25, started_s + coming[-1].at_s - now_s) if coming else 0.25
            self._take_events(times, unanswered, max(0.0, wait_s))
        return gave_up

    def _take_events(self, times: Mapping[str, RequestTimes], unanswered: set[str], wait_s: float) -> None:
        try:
            at_s, events = self._produced.get(timeout=wait_s)
        except queue.Empty:
            if not self._thread.is_alive():
                raise RuntimeError("the engine thread has died; its traceback is above") from None
            return
        for event in events:
            assert event.error is None, event.error
            record = times.get(event.request_id)
            if record is not None:  # else it was cut before its first token was due
                room = record.num_tokens_wanted - len(record.token_times_s)
                record.token_times_s += [at_s] * min(len(event.tokens), room)
                record.finish = event.finish
            if event.finish is not None:
                unanswered.discard(event.request_id)


def _cut(times: dict[str, RequestTimes], request_id: str, now_s: float) -> None:
    record = times[request_id]
    if not record.token_times_s and now_s < record.due_s + record.slo.ttft_s:
        del times[request_id]
    else:
        record.num_tokens_wanted = max(1, len(record.token_times_s))


def _busy_cpu_s() -> float:
    spent = psutil.cpu_times()
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(value for name, value in spent._asdict().items() if name not in idle))


def _cpu_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)
