"""Measures how long a GPU would wait for the host between decode steps, with steps handed out early and without.

    python benchmarks/gpu/step_gaps.py [--quick] [--json FILE [--plot PNG]]

Needs no GPU: the engine, its scheduler and its executor run, and a replayed step takes a time that is set beforehand.
What the driver takes for a launch, and what the host computes of a prompt, is not in it. `idle_us` is the mean from
the end of a step to the beginning of the next one of the same batch, in the median of the rounds, in which the ways
take turns; `most_idle_us` is that of the round that was disturbed most.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu.host_step import HostLanes
from gpu.random_models import random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from report.command import print_table

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner, Enqueue
from pdmux_actor.executor.cuda.graph_key import LOGITS, GraphKey, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.model_runner import Produced
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import GenerateRequest, SampledToken, SamplingParams, Slo, TokenEvent
from pdmux_actor.models.operators import TorchOperators
from pdmux_actor.scheduling.events import Arrival, AttachModel
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, sampling_sequences
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits
from profiler.gpus.h200 import DEVICE as H200
from profiler.roofline import RooflineLatency

ROW_KEY = ("batch", "step_ms", "early")
CASES = ((1, 2.0), (32, 2.0), (128, 4.0))
_BLOCK_BYTES = 4096  # 32 tokens of the tiny model's heads
_PROMPT_TOKENS = 1024
_WARM_UP_STEPS = 20
_ROUNDS = 5
_TOKEN = 5


class ModelledDevice:
    """Runs one step after the other, each for `step_s`."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.free_s = 0.0
        self.idle_s: list[float] = []

    def run_step(self) -> None:
        now_s = time.perf_counter()
        self.idle_s.append(max(0.0, now_s - self.free_s))
        self.free_s = max(now_s, self.free_s) + self._step_s


class ModelledLanes(HostLanes):
    def __init__(self, device_of_steps: ModelledDevice) -> None:
        super().__init__()
        self._steps = device_of_steps

    def record(self, stream: object) -> Any:
        ends_s = self._steps.free_s
        return SimpleNamespace(query=lambda: time.perf_counter() >= ends_s)


class ModelledGraphs(LaunchGraphs):
    """Every decode step is captured; a replay of its logits takes the device's time, its sampling none."""

    def __init__(self, device: ModelledDevice) -> None:
        super().__init__(None, 0)
        self._device = device

    def find(self, key: GraphKey) -> Sequence[Step] | None:
        return (self._device.run_step if key.part == LOGITS else _nothing,)


class PromptlessRunner(CudaRunner):
    """Answers launches with prompts without computing them."""

    def prepare(self, launch: ComputeLaunch, sms: int, stream: Any, *, first_sm: int = 0) -> Enqueue:
        if isinstance(launch, DecodeStep):
            return super().prepare(launch, sms, stream, first_sm=first_sm)
        num_layers = self._models[launch.model].info.spec.num_layers
        produced = Produced(tuple((SampledToken(_TOKEN),) for _ in sampling_sequences(launch, num_layers)))
        return lambda: lambda: produced


def _nothing() -> None:
    pass


def _promptless(number: int, models: Mapping[str, Any], graphs: LaunchGraphs, device: torch.device) -> CudaRunner:
    return PromptlessRunner(models, graphs, device)


def open_executor(batch: int, steps: int, device: ModelledDevice) -> TorchCudaExecutor:
    rows = 2 * batch * (-(-(_PROMPT_TOKENS + most_tokens(batch, steps)) // 32) + 1)
    return TorchCudaExecutor(
        kv_pool_bytes=4 * rows * _BLOCK_BYTES,
        block_bytes=_BLOCK_BYTES,
        lanes=ModelledLanes(device),
        device=replace(H200, partition_granularity_sms=16),
        graphs=ModelledGraphs(device),
        captures_ahead=False,
        launch_limits=LaunchLimits(sequences=batch),
        make_runner=_promptless,
    )


def most_tokens(batch: int, steps: int) -> int:
    """Of a request: none ends before the last one has come and what is measured is over."""
    return steps + 2 * _WARM_UP_STEPS + 4 * batch


def request(number: int, model: str, num_tokens: int) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    prompt = (3 + number, *range(3, 2 + _PROMPT_TOKENS // 2), *range(3, 3 + _PROMPT_TOKENS // 2))
    return GenerateRequest(
        request_id=str(number),
        model=model,
        prompt_token_ids=tuple(token % 640 for token in prompt),
        sampling=sampling,
        slo=Slo(ttft_s=60.0, tbt_s=0.05),
    )


def idle_s(batch: int, step_s: float, steps: int, *, early: bool) -> list[float]:
    """Before each of `steps` steps of the whole batch."""
    device, told = ModelledDevice(step_s), list[TokenEvent]()
    executor = open_executor(batch, steps, device)
    loaded = random_model(
        "tiny", device=executor.torch_device, block_bytes=_BLOCK_BYTES, dtype="float32", operators=TorchOperators()
    )
    executor.hold(loaded)
    settings = SchedulerSettings(max_running_sequences=batch, max_look_ahead_steps=1, early_steps=early)
    engine, inbox = build_engine(
        executor, policy="mux", settings=settings, latency=RooflineLatency(H200), outbox=told.extend
    )
    inbox.put(AttachModel(loaded.info, executor.total_blocks))
    for number in range(batch):
        inbox.put(Arrival(request(number, loaded.info.model, most_tokens(batch, steps))))
    while len({event.request_id for event in told if event.tokens}) < batch:
        engine.turn()
    begun = len(device.idle_s)
    while len(device.idle_s) < begun + _WARM_UP_STEPS + steps:
        engine.turn()
    return device.idle_s[begun + _WARM_UP_STEPS :][:steps]


def measure(batch: int, step_ms: float, steps: int) -> list[Row]:
    means_us: dict[bool, list[float]] = {False: [], True: []}
    for early in (False, True) * _ROUNDS:
        means_us[early].append(1e6 * statistics.fmean(idle_s(batch, step_ms / 1e3, steps, early=early)))
    return [_row(batch, step_ms, early, steps, of_rounds) for early, of_rounds in means_us.items()]


def _row(batch: int, step_ms: float, early: bool, steps: int, means_us: Sequence[float]) -> Row:
    idle_us = statistics.median(means_us)
    return {
        "batch": batch,
        "step_ms": step_ms,
        "early": early,
        "steps": steps,
        "rounds": len(means_us),
        "idle_us": round(idle_us, 1),
        "most_idle_us": round(max(means_us), 1),
        "idle_share": round(idle_us / (idle_us + 1e3 * step_ms), 4),
    }


def measure_here(options: argparse.Namespace, kept: KeptRows) -> None:
    torch.set_num_threads(1)
    for batch, step_ms in CASES:
        if kept.wants(batch=batch, step_ms=step_ms, early=True):
            keep(kept, partial(measure, batch, step_ms, 64 if options.quick else 512))


def keep(kept: KeptRows, rows: Callable[[], list[Row]]) -> None:
    for row in rows():
        kept.add(row)


def show(kept: KeptRows) -> None:
    columns = {"batch": "{batch}", "step ms": "{step_ms:g}", "early": "{early}", "steps": "{steps}"}
    figures = {"idle us": "{idle_us:.0f}", "at most": "{most_idle_us:.0f}", "share of the time": "{idle_share:.1%}"}
    print_table(kept.rows, {**columns, **figures})


def draw(figure: Any, rows: Sequence[Row]) -> None:
    named = [
        {**row, "case": f"{row['batch']} x {row['step_ms']:g} ms", "way": "early" if row["early"] else "one by one"}
        for row in rows
    ]
    draw_bars(figure, named, group="case", bar="way", value="idle_us", label="us")


def main() -> None:
    run_script(make_parser(__doc__, quick="fewer steps"), ROW_KEY, measure_here, show, draw)


if __name__ == "__main__":
    main()
