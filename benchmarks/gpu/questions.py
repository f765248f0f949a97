"""What the CUDA executor builds on, asked of this GPU: partitions, graphs inside them, lanes beside each other.

    python benchmarks/gpu/questions.py [--quick] [--json FILE]

Rows: a bf16 matrix product and a copy on each lane of each pair, alone and beside the other lane, launched eagerly and
as a captured graph, over the same work on the whole GPU. A lane keeps to its SMs if the product slows down by the
whole GPU's SMs over the lane's; a graph keeps its partition if both columns agree.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from machine_facts import machine_facts, write_report
from rich.console import Console
from rich.table import Table

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device
from pdmux_actor.executor.cuda.partition_streams import open_partition_streams
from pdmux_actor.scheduling.launch import Lane

MATRIX_SIZE = 4096
COPY_BYTES = 1 << 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Times over those on the whole GPU; 1.0 for `sms_ratio` would be a lane that has all SMs."""

    lane: str
    sms: int
    work: str
    sms_ratio: float
    eager: float
    graph: float
    beside_other_lane: float


Work = Callable[[], object]


def device_time_s(stream: Any, work: Work, repeats: int) -> float:
    times = []
    with torch.cuda.stream(stream):
        work()
        for _ in range(repeats):
            started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            started.record(stream)
            work()
            ended.record(stream)
            ended.synchronize()
            times.append(started.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def captured(stream: Any, work: Work) -> Work:
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def beside_time_s(stream: Any, work: Work, other: Any, other_work: Work, repeats: int) -> float:
    """`other_work` is kept running on the other lane all the while."""
    times = []
    for _ in range(repeats):
        with torch.cuda.stream(other):
            for _ in range(20):
                other_work()
        times.append(device_time_s(stream, work, 1))
    torch.cuda.synchronize()
    return statistics.median(times)


def make_works(device: torch.device) -> dict[str, Work]:
    left = torch.randn(MATRIX_SIZE, MATRIX_SIZE, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(left)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {"product": lambda: torch.mm(left, left, out=product), "copy": lambda: target.copy_(source)}


def ask(quick: bool) -> tuple[list[Row], dict[str, object]]:
    device = open_cuda_device()
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    streams = open_partition_streams(device, num_sms)
    own, others = make_works(device), make_works(device)
    repeats = 5 if quick else 15
    whole = {name: device_time_s(streams.stream(Lane.DECODE, num_sms), work, repeats) for name, work in own.items()}
    rows = []
    shares = range(streams.step_sms, num_sms, streams.step_sms * (3 if quick else 1))
    for share in shares:
        for lane, sms in ((Lane.DECODE, share), (Lane.PREFILL, num_sms - share)):
            other_lane = Lane.PREFILL if lane is Lane.DECODE else Lane.DECODE
            stream, other = streams.stream(lane, sms), streams.stream(other_lane, num_sms - sms)
            for name, work in own.items():
                replay = captured(stream, work)
                rows.append(
                    Row(
                        lane=lane.value,
                        sms=sms,
                        work=name,
                        sms_ratio=num_sms / sms,
                        eager=device_time_s(stream, work, repeats) / whole[name],
                        graph=device_time_s(stream, replay, repeats) / whole[name],
                        beside_other_lane=beside_time_s(stream, work, other, others["copy"], repeats) / whole[name],
                    )
                )
    switch_s = _switch_cost_s([streams.stream(Lane.DECODE, share) for share in shares], repeats)
    spec = cuda_device_spec(device, step_sms=streams.step_sms)
    facts = {**machine_facts(spec), "partitioned_by": streams.kind, "switch_s": switch_s, "whole_s": whole}
    streams.close()
    return rows, facts


def _switch_cost_s(streams: list[Any], repeats: int) -> float:
    """Host time to move a tiny launch to the next partition's stream and see it done, less that of staying."""
    tiny = torch.zeros(1, device="cuda")

    def run_on(stream: Any) -> float:
        started_s = time.perf_counter()
        with torch.cuda.stream(stream):
            tiny.add_(1)
        stream.synchronize()
        return time.perf_counter() - started_s

    for stream in streams:
        run_on(stream)
    staying = [run_on(streams[0]) for _ in range(repeats * 4)]
    moving = [run_on(streams[i % len(streams)]) for i in range(repeats * 4)]
    return statistics.median(moving) - statistics.median(staying)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every third partition")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    try:
        rows, facts = ask(args.quick)
    except DeviceUnavailable as error:
        sys.exit(str(error))
    table = Table("lane", "SMs", "work", "SMs of all / own", "eager", "graph", "beside the other")
    for row in rows:
        numbers = (f"{n:.2f}" for n in (row.sms_ratio, row.eager, row.graph, row.beside_other_lane))
        table.add_row(row.lane, str(row.sms), row.work, *numbers)
    Console().print(table)
    Console().print(facts)
    if args.json:
        write_report(args.json, facts, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
