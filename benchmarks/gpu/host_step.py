"""Measures what the host spends on a decode step: from the order to launch it until it is enqueued. Needs no GPU.

    python benchmarks/gpu/host_step.py [--quick] [--json FILE [--plot PNG]]

A captured step costs nothing here, and a device answers at once: what is left is the executor's own work. Each sequence
gets its token after each step, as in the engine, so that rows fill and new ones begin. `joined_us` is of a step
before which the batch's first sequence left and another joined at the end, `new_us` of a batch none of which was in the
lane's last step; both over contexts that the device has. `drawn_us` is with temperature and top-p.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engines.hand_made_launches import GREEDY, HandMadeLaunches
from gpu.random_models import random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from report.command import print_table

from pdmux_actor.executor.cuda.graph_key import GraphKey, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import SamplingParams
from pdmux_actor.models.operators import TorchOperators
from pdmux_actor.models.uploads import copy_in_place
from pdmux_actor.scheduling.launch import Lane
from pdmux_actor.scheduling.sequence import TokenSequence
from placement.launch_limits import LaunchLimits
from profiler.gpus.h200 import DEVICE as H200

ROW_KEY = ("batch", "tokens")
CASES = ((1, 1024), (32, 1024), (128, 1024), (256, 1024), (32, 8192))
_TURNS = 4
_BLOCK_BYTES = 4096  # 32 tokens of the tiny model's heads: as 16 KiB of an 8B model's
_DRAWN = SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9, seed=1)


class HostLanes:
    """Implements LaneDevice: launches are over at once."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        stream = SimpleNamespace(synchronize=lambda: None)
        self.streams: Any = SimpleNamespace(
            kind="none",
            step_sms=16,
            unpartitioned_reason=None,
            stream=lambda lane, sms: stream,
            sms_given=lambda lane, sms: sms,
            close=lambda: None,
        )

    def on(self, stream: object, sms: int, lane: Lane) -> AbstractContextManager[object]:
        return nullcontext()

    def record(self, stream: object) -> Any:
        return SimpleNamespace(query=lambda: True)

    def settle(self) -> None:
        pass

    def free_memory_bytes(self) -> int:
        return 1 << 40

    def give_back(self) -> None:
        pass

    def copying(self) -> AbstractContextManager[object]:
        return nullcontext()

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        copy_in_place(target, source)

    def pin(self, memory: torch.Tensor) -> None:
        pass

    def unpin(self, memory: torch.Tensor) -> None:
        pass


class FreeGraphs(LaunchGraphs):
    """Every step is captured, and a replay does nothing."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def find(self, key: GraphKey) -> Sequence[Step] | None:
        return (_nothing,)


def _nothing() -> None:
    pass


def open_launches(batch: int, tokens: int, steps: int) -> HandMadeLaunches:
    blocks_per_row = 4
    rows = 3 * batch * (-(-(tokens + steps) // 32) + 1)
    executor = TorchCudaExecutor(
        kv_pool_bytes=rows * blocks_per_row * _BLOCK_BYTES,
        block_bytes=_BLOCK_BYTES,
        lanes=HostLanes(),
        device=replace(H200, partition_granularity_sms=H200.num_sms // 2),
        graphs=FreeGraphs(),
        captures_ahead=False,
        launch_limits=LaunchLimits(sequences=batch),
    )
    loaded = random_model(
        "tiny", device=executor.torch_device, block_bytes=_BLOCK_BYTES, dtype="float32", operators=TorchOperators()
    )
    executor.hold(loaded)
    return HandMadeLaunches(executor, loaded.info)


def steps_s(launches: HandMadeLaunches, sequences: Sequence[TokenSequence], steps: int) -> list[float]:
    """Of each of `steps` steps, from submit to enqueued."""
    launch, taken_s = launches.decode_launch(sequences), []
    for _ in range(steps):
        began_s = time.perf_counter()
        launches.submit(launch)
        taken_s.append(time.perf_counter() - began_s)
        launches.wait()
        for sequence in sequences:
            sequence.token_ids.append(1)
    return taken_s


def measure(batch: int, tokens: int, steps: int) -> Row:
    launches = open_launches(batch, tokens, 2 * steps + 16)
    found: dict[str, float] = {}
    for name, sampling in (("us", GREEDY), ("drawn_us", _DRAWN)):
        sequences = launches.sequences([tokens] * batch, room_tokens=2 * steps + 16, sampling=sampling)
        steps_s(launches, sequences, 8)
        found[name] = 1e6 * statistics.median(steps_s(launches, sequences, steps))
        if name == "us":
            others = launches.sequences([tokens] * batch, room_tokens=2 * steps + 16)
            steps_s(launches, others, 1)  # sends what prefill would have sent
            turns = [steps_s(launches, batch_in_turn, 1)[0] for batch_in_turn in (sequences, others) * _TURNS]
            found["new_us"] = 1e6 * statistics.median(turns)
            queue = [*sequences, *others]
            batches = [queue[first : first + batch] for first in range(1, 1 + min(batch, 2 * _TURNS))]
            steps_s(launches, sequences, 1)
            found["joined_us"] = 1e6 * statistics.median([steps_s(launches, b, 1)[0] for b in batches])
    return {"batch": batch, "tokens": tokens, "steps": steps, **{name: round(us, 1) for name, us in found.items()}}


def measure_here(options: argparse.Namespace, kept: KeptRows) -> None:
    torch.set_num_threads(1)  # copies that a GPU's copy engine would do
    for batch, tokens in CASES:
        if kept.wants(batch=batch, tokens=tokens):
            kept.attempt(
                {"batch": batch, "tokens": tokens},
                lambda batch=batch, tokens=tokens: measure(batch, tokens, 64 if options.quick else 512),
            )


def show(kept: KeptRows) -> None:
    names = ("us", "drawn_us", "joined_us", "new_us")
    print_table(kept.rows, {"batch": "{batch}", "tokens": "{tokens}", **{n: f"{{{n}:.0f}}" for n in names}})


def draw(figure: Any, rows: Sequence[Row]) -> None:
    named = [{**row, "title": "host time of a step", "case": f"{row['batch']} x {row['tokens']}"} for row in rows]
    draw_bars(figure, named, group="title", bar="case", value="us", label="us")


def main() -> None:
    run_script(make_parser(__doc__, quick="fewer steps"), ROW_KEY, measure_here, show, draw)


if __name__ == "__main__":
    main()
