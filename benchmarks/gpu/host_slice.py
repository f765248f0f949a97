"""Measures what the host spends on a slice of prefill: launch by launch, and from graphs of its layers. Needs no GPU.

    python benchmarks/gpu/host_slice.py [--quick] [--json FILE [--plot PNG]]

Triton's kernels are prepared for sm_90 and not launched; torch's operators compute on a CPU, over so few values that
it is their call that takes time; flash attention, which a CPU has not, is a copy. A replay costs nothing here: what a
driver takes for a launch, or for a graph of a layer, comes on top. `layer_us` is a layer's part of a slice of half the
layers, launched one by one. The ways take turns.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engines.hand_made_launches import HandMadeLaunches
from gpu.host_step import HostLanes
from gpu.random_models import SHAPES, hold_random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from gpu.silent_gpu import SilentGpu
from report.command import print_table
from torch import Tensor
from triton.runtime.driver import driver

from pdmux_actor.executor.cuda import device_attention
from pdmux_actor.executor.cuda.graph_key import LAYERS, GraphKey, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.launch import DropPrefill, PrefillSlice
from placement.launch_limits import LaunchLimits
from profiler.gpus.h200 import DEVICE as H200

ROW_KEY = ("prompts", "tokens")
CASES = ((1, 16), (4, 4), (16, 1))
_BLOCK_BYTES = 4096
_MODEL = "tiny-16"
_WARM_UPS = 3


class PromptGraphs(LaunchGraphs):
    """While `are_used`, every layer is captured, and a replay does nothing."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(None, 0)
        self.are_used = False
        self._steps = [_nothing] * (2 + num_layers)

    def find(self, key: GraphKey) -> Sequence[Step] | None:
        return self._steps if self.are_used and key.part == LAYERS else None


def _nothing() -> None:
    pass


def open_launches() -> tuple[HandMadeLaunches, PromptGraphs]:
    graphs = PromptGraphs(SHAPES[_MODEL]["num_hidden_layers"])
    executor = TorchCudaExecutor(
        kv_pool_bytes=64 << 20,
        block_bytes=_BLOCK_BYTES,
        lanes=HostLanes(),
        device=replace(H200, partition_granularity_sms=H200.num_sms // 2),
        graphs=graphs,
        captures_ahead=False,
        launch_limits=LaunchLimits(batch_tokens=64, sequences=16),
    )
    return HandMadeLaunches(executor, hold_random_model(executor, _MODEL, "float32")), graphs


def slice_s(launches: HandMadeLaunches, launch: PrefillSlice) -> float:
    """From submit to enqueued: the thread's own time, whatever else the machine does."""
    began_s = time.thread_time()
    launches.submit(launch)
    taken_s = time.thread_time() - began_s
    launches.wait()
    return taken_s


def measure(prompts: int, tokens: int, turns: int) -> Row:
    launches, graphs = open_launches()
    sequences = launches.sequences([tokens] * prompts)
    num_layers = launches.info.spec.num_layers
    taken_s: dict[str, list[float]] = {"eager": [], "half": [], "captured": []}
    for _ in range(_WARM_UPS + turns):
        for way, taken in taken_s.items():
            graphs.are_used = way == "captured"
            launch = launches.prefill_launch(sequences)
            if way != "half":
                taken.append(slice_s(launches, launch))
                continue
            taken.append(slice_s(launches, first_layers(launch, num_layers // 2)))
            launches.executor.submit(DropPrefill(batch_id=launch.batch_id))
    us = {way: 1e6 * statistics.median(taken[_WARM_UPS:]) for way, taken in taken_s.items()}
    # The whole one samples, too: what a layer takes is told by those that do not.
    shown = {"eager_us": us["eager"], "captured_us": us["captured"], "layer_us": us["half"] / (num_layers // 2)}
    return {
        "prompts": prompts,
        "tokens": tokens,
        "layers": num_layers,
        "turns": turns,
        **{name: round(value, 1) for name, value in shown.items()},
    }


def first_layers(launch: PrefillSlice, last_layer: int) -> PrefillSlice:
    return PrefillSlice(
        batch_id=launch.batch_id, model=launch.model, chunks=launch.chunks, first_layer=0, last_layer=last_layer
    )


def copy_attention(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, context_ends: Tensor, chunks: object, out: Tensor
) -> None:
    """Stands for prompt_attention.varlen_attention."""
    out.copy_(query)


def measure_here(options: argparse.Namespace, kept: KeptRows) -> None:
    torch.set_num_threads(1)
    driver.set_active(SilentGpu())
    device_attention.varlen_attention = copy_attention
    for prompts, tokens in CASES:
        if kept.wants(prompts=prompts, tokens=tokens):
            kept.attempt(
                {"prompts": prompts, "tokens": tokens},
                lambda prompts=prompts, tokens=tokens: measure(prompts, tokens, 20 if options.quick else 100),
            )


def show(kept: KeptRows) -> None:
    names = ("eager_us", "captured_us", "layer_us")
    columns = {"prompts": "{prompts}", "tokens": "{tokens}", "layers": "{layers}"}
    print_table(kept.rows, {**columns, **{n: f"{{{n}:.0f}}" for n in names}})


def draw(figure: Any, rows: Sequence[Row]) -> None:
    named = [
        {"way": name, "case": f"{row['prompts']} x {row['tokens']}", "us": row[name]}
        for row in rows
        for name in ("eager_us", "captured_us")
    ]
    draw_bars(figure, named, group="way", bar="case", value="us", label="us")


def main() -> None:
    run_script(make_parser(__doc__, quick="fewer turns"), ROW_KEY, measure_here, show, draw)


if __name__ == "__main__":
    main()
