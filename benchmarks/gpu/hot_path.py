"""Profiles the hot path on this GPU: decode steps beside prefill slices, once everything is warm.

    python benchmarks/gpu/hot_path.py [--model llama-3-8b] [--json FILE [--plot PNG]]

Reports calls that have no place there (allocations, waits for the device, copies through pageable memory, `.item()`),
how busy each stream was, and the kernels that took longest. Exit code 1 if a call has no place there.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines.hand_made_launches import HandMadeLaunches
from gpu.random_models import SHAPES, hold_random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from gpu.trace_reading import FORBIDDEN_CALLS, Event, busy_shares, faults, kernel_times_s, within
from report.command import print_table
from rich.console import Console
from torch.profiler import ProfilerActivity, profile, record_function

from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.launch import PrefillSlice
from pdmux_actor.scheduling.sequence import TokenSequence

BLOCK_BYTES = 16 * 1024
Sizes = Mapping[str, int]
_TOP_KERNELS = 20
_SPAN = "hot path"


def drive(
    launches: HandMadeLaunches,
    decoding: Sequence[TokenSequence],
    prompts: Sequence[TokenSequence],
    *,
    slices: int,
    layers: int,
) -> None:
    """`slices` prefill slices of `layers` layers each, with decode steps of `decoding` beside them."""
    num_layers = launches.info.spec.num_layers
    decode, whole = launches.decode_launch(decoding), launches.prefill_launch(prompts)

    def next_slice(launch: PrefillSlice) -> PrefillSlice:
        first = launch.last_layer % num_layers
        base = launches.prefill_launch(prompts) if first == 0 else launch
        return PrefillSlice(
            batch_id=base.batch_id,
            model=base.model,
            chunks=base.chunks,
            first_layer=first,
            last_layer=min(first + layers, num_layers),
        )

    launches.submit(decode)
    launches.submit(next_slice(whole))  # `whole` ends at the last layer: its successor begins a new batch
    done_slices, in_flight = 0, 2
    while in_flight:
        for done in launches.wait():
            in_flight -= 1
            if isinstance(done.launch, PrefillSlice):
                done_slices += 1
                # Whole prompts only: half of one would keep its hidden states.
                if done_slices < slices or done.launch.last_layer < num_layers:
                    launches.submit(next_slice(done.launch))
                    in_flight += 1
            elif done_slices < slices:
                launches.submit(decode)
                in_flight += 1


def trace_of(launches: HandMadeLaunches, sizes: Sizes, activities: Sequence[ProfilerActivity]) -> list[Event]:
    """Of a second go with the same sequences: the first one compiles, captures and allocates, and says which blocks
    their rows have. Nobody computed their contexts, so that fresh ones would have to say it again, which waits.
    """
    decoding, prompts = launches.sequences([sizes["context"]] * sizes["batch"]), launches.sequences([sizes["prompt"]])
    drive(launches, decoding, prompts, slices=sizes["slices"], layers=sizes["layers"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=list(activities)) as profiled, record_function(_SPAN):
            drive(launches, decoding, prompts, slices=sizes["slices"], layers=sizes["layers"])
        profiled.export_chrome_trace(str(path))
        return within(json.loads(path.read_text())["traceEvents"], _SPAN)


def run(
    executor: TorchCudaExecutor,
    shape: str,
    sizes: Sizes,
    kept: KeptRows,
    *,
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CPU, ProfilerActivity.CUDA),
    dtype: str = "bfloat16",
) -> dict[str, int]:
    """What has no place in the hot path, and how often it was seen."""
    info = hold_random_model(executor, shape, dtype)
    launches = HandMadeLaunches(executor, info)
    num_sms, step = executor.device.num_sms, executor.device.partition_granularity_sms
    decode_sms = max(step, num_sms // 3 // step * step)
    launches.partition(num_sms - decode_sms, decode_sms)
    events = trace_of(launches, sizes, activities)
    found = faults(events)
    kept.rows.clear()  # a profile is one piece: nothing of it is resumed
    kept.note({"sizes": sizes, "decode_sms": decode_sms, "faults": found, "busy_share_of_streams": busy_shares(events)})
    for name, seconds in list(kernel_times_s(events).items())[:_TOP_KERNELS]:
        kept.add({"kernel": name, "seconds": seconds})
    return found


def draw(figure: Any, rows: Sequence[Row]) -> None:
    shortened = [{**row, "title": "device time", "kernel": row["kernel"][:60]} for row in rows]
    draw_bars(figure, shortened, group="title", bar="kernel", value="seconds", label="s")


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    executor = open_cuda_executor(kv_pool_bytes=int(options.kv_gib * (1 << 30)), block_bytes=BLOCK_BYTES)
    kept.note_gpu(executor.device, executor.chosen)
    kept.note({"model": options.model})
    sizes = {"batch": 32, "context": 1024, "prompt": 2048, "slices": 8 if options.quick else 24, "layers": 8}
    found = run(executor, options.model, sizes, kept)
    executor.close()
    for name, times in found.items():
        kept.failures[name] = f"{times} times: {FORBIDDEN_CALLS.get(name, 'not through pinned memory')}"


def show(kept: KeptRows) -> None:
    print_table(
        [{**row, "ms": 1e3 * row["seconds"]} for row in kept.rows], {"kernel": "{kernel:.90}", "ms": "{ms:.2f}"}
    )
    Console().print({"busy_share_of_streams": kept.facts["busy_share_of_streams"]})


def main() -> None:
    parser = make_parser(__doc__, quick="fewer slices")
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--kv-gib", type=float, default=16.0, help="KV pool")
    run_script(parser, ("kernel",), measure_on_gpu, show, draw)


if __name__ == "__main__":
    main()
