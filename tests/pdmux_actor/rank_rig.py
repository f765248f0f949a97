"""Engines over one rank and several, on threads of a test: gloo on this machine's cores, each other rank a process."""

import threading
from contextlib import contextmanager

import pytest
from measured_cpu import measured_cpu

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.events import Arrival, AttachModel, RemoveModel, Stop
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.serving import rank_processes
from profiler.roofline import RooflineLatency

BLOCK_BYTES = 2048


class EngineRun:
    """An engine's loop on a thread. `executor` is closed with it."""

    def __init__(self, executor, num_ranks):
        self._executor = executor
        self._tokens, self._errors = {}, []
        self.prompt_logprobs = []
        self._open, self._done = set(), threading.Event()
        self._detached = threading.Event()
        settings = SchedulerSettings(max_batch_tokens=256, chunk_budget_tokens=48)
        latency = RooflineLatency(executor.device, num_gpus=num_ranks)
        self.loop, self.inbox = build_engine(
            executor,
            policy="mux",
            settings=settings,
            latency=latency,
            outbox=self._take,
            on_detached=lambda model: self._detached.set(),
            num_ranks=num_ranks,
        )
        self.thread = threading.Thread(target=self.loop.run)

    def attach(self, info, quota_tokens=4000):
        quota_rows = -(-quota_tokens // info.geometry.tokens_per_row)
        self.inbox.put(AttachModel(info, quota_rows * info.geometry.blocks_per_row))

    def detach(self, model):
        self._detached.clear()
        self.inbox.put(RemoveModel(model))
        assert self._detached.wait(30)

    def answers(self, requests, *before):
        self._open = {r.request_id for r in requests}
        self._tokens = {r.request_id: [] for r in requests}
        self.prompt_logprobs = []
        self._done.clear()
        for event in (*before, *map(Arrival, requests)):
            self.inbox.put(event)
        assert self._done.wait(120), f"unanswered: {self._open}"
        assert not self._errors
        return {request_id.partition("/")[2]: tokens for request_id, tokens in self._tokens.items()}

    def _take(self, events):
        for event in events:
            if event.error is not None:
                self._errors.append(event.error)
            self.prompt_logprobs += event.prompt_logprobs or ()
            self._tokens[event.request_id] += [t.token_id for t in event.tokens]
            if event.finish is not None:
                self._open.discard(event.request_id)
        if not self._open:
            self._done.set()


@contextmanager
def running(checkpoints, num_ranks):
    settings = {"kv_pool_bytes": 48 << 20, "block_bytes": BLOCK_BYTES, "default_dtype": "float32"}
    if num_ranks == 1:
        executor = TorchCpuExecutor(device=measured_cpu(), **settings)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rank_processes, "measure_cpu", lambda _: measured_cpu())  # of all cores, which ranks share
            executor = rank_processes.open_tensor_parallel_executor(
                num_ranks=num_ranks, num_lanes=2, shares_cores=True, **settings
            )
    run = EngineRun(executor, num_ranks)
    for model, folder in checkpoints.items():
        info = executor.load_model(ModelSource(model=model, source=str(folder), max_model_len=512))
        run.attach(info)
    run.thread.start()
    try:
        yield run, executor
    finally:
        run.inbox.put(Stop())
        run.thread.join(30)
        assert not run.thread.is_alive()
