"""What the CUDA executor builds on, asked of this GPU: partitions, graphs inside them, lanes beside each other.

    python benchmarks/gpu/questions.py [--quick] [--only census ...] [--json FILE [--resume] [--plot PNG]]

Rows "census": on which SMs a lane's kernels ran, eagerly and replayed from a graph, and how many of them the other
lane's kernels used, too (0 where partitions hold). Fact "combinations": every two lanes' shares that a policy can have
in force at once, those of different splits of the device too, and which of them had SMs in common. Rows "speed": a
bf16 matrix product, one with few rows as decode steps have, both again told how many SMs they have, a copy and a
Triton kernel on each lane of each pair, alone, from a graph and beside the other lane, over the same work on the whole
GPU. Rows "queue": how long a tiny kernel
takes beside a lane that is full, over how long it takes alone (far above 1 where both lanes' streams share a hardware
queue). Facts: what a switch costs, and the memory of cuBLAS's workspaces.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu.script import KeptRows, Row, draw_questions, make_parser, run_script
from report.command import print_table
from rich.console import Console
from rich.progress import track

from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams, open_partition_streams
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.scheduling.launch import Lane

Work = Callable[[], object]
_QUEUED = 20  # launches of the other lane that keep it busy meanwhile
# Small ones that wait in its queue, as of a prefill that is launched eagerly far ahead: a graph may have to wait for
# them (pytorch#176582).
_MANY_QUEUED = 400
_PRODUCTS, _TOLD = ("product", "product of few rows"), " told its SMs"
_FEW_ROWS, _WIDER = 32, 4  # the weight of the latter is wider, so that no cache holds it
QUESTIONS = ("census", "queue", "speed")
ROW_KEY = ("question", "lane", "sms", "work")


class Census(Protocol):
    def take(self) -> None: ...

    def sms(self) -> frozenset[int]: ...


class Gpu(Protocol):
    """What is asked of CUDA beside streams; a test has one that is none."""

    def on(self, stream: Any) -> AbstractContextManager[object]: ...

    def event(self) -> Any: ...

    def captured(self, stream: Any, work: Work) -> Work: ...

    def census(self) -> Census: ...

    def carve_out(self, sms: int | None) -> None:
        """Matrix products launch as if the GPU had `sms` SMs fewer."""
        ...

    def reserved_bytes(self) -> int: ...


class CudaGpu:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._library = torch.backends.cuda.preferred_blas_library()

    def on(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)

    def captured(self, stream: Any, work: Work) -> Work:
        with torch.cuda.stream(stream):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        return graph.replay

    def census(self) -> Census:
        from gpu.sm_census import SmCensus

        return SmCensus(self._device)

    def carve_out(self, sms: int | None) -> None:
        torch.backends.cuda.preferred_blas_library(self._library if sms is None else "cublaslt")
        torch._C._set_sm_carveout_experimental(sms)

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device)


def device_time_s(gpu: Gpu, stream: Any, work: Work, repeats: int, *, warm_ups: int = 1) -> float:
    times = []
    with gpu.on(stream):
        for _ in range(warm_ups):
            work()
        for _ in range(repeats):
            started, ended = gpu.event(), gpu.event()
            started.record(stream)
            work()
            ended.record(stream)
            ended.synchronize()
            times.append(started.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def beside_time_s(gpu: Gpu, stream: Any, work: Work, other: Any, other_work: Work, repeats: int) -> float:
    """`other_work` is kept running on the other lane all the while."""
    times = []
    for _ in range(repeats):
        with gpu.on(other):
            for _ in range(_QUEUED):
                other_work()
        times.append(device_time_s(gpu, stream, work, 1, warm_ups=0))
        other.synchronize()
    return statistics.median(times)


class Lanes:
    """Everything that is asked of one GPU. `matrix_size` and `copy_bytes` say how much work a launch is."""

    def __init__(
        self,
        gpu: Gpu,
        streams: PartitionStreams,
        device: torch.device,
        *,
        num_sms: int,
        matrix_size: int = 4096,
        copy_bytes: int = 1 << 29,
        repeats: int = 15,
    ) -> None:
        self._gpu = gpu
        self._streams = streams
        self.num_sms = num_sms
        self._repeats = repeats
        self._tiny = torch.zeros(1, device=device)
        self.own = make_works(device, matrix_size, copy_bytes)
        self._others = make_works(device, matrix_size, copy_bytes)
        whole = streams.stream(Lane.DECODE, num_sms)
        self.whole_s = {name: device_time_s(gpu, whole, work, repeats) for name, work in self.own.items()}
        self.whole_s |= {name + _TOLD: self.whole_s[name] for name in _PRODUCTS}

    def pairs(self, stride: int) -> Iterator[tuple[Lane, int, Any, Any]]:
        """Lane, its SMs, its stream and the other lane's."""
        step = self._streams.step_sms
        for share in range(step, self.num_sms - step + 1, step * stride):
            decode = self._streams.stream(Lane.DECODE, share)
            prefill = self._streams.stream(Lane.PREFILL, self.num_sms - share)
            yield Lane.DECODE, share, decode, prefill
            yield Lane.PREFILL, self.num_sms - share, prefill, decode

    def census(self, stream: Any, other: Any) -> dict[str, object]:
        census = self._gpu.census()
        seen = []
        replay = self._gpu.captured(stream, census.take)
        for on, take in ((stream, census.take), (stream, replay), (other, census.take)):
            with self._gpu.on(on):
                take()
            on.synchronize()
            seen.append(census.sms())
        eager, graph, others = seen
        return {
            "eager_sms": len(eager),
            "graph_sms": len(graph),
            "shared_sms": len((eager | graph) & others),
            "sm_ids": sorted(eager | graph),
        }

    def speed(self, name: str, sms: int, stream: Any, other: Any) -> dict[str, object]:
        work, told = self.own[name.removesuffix(_TOLD)], name.endswith(_TOLD)
        if told:
            self._gpu.carve_out(self.num_sms - sms)
        try:
            whole_s, repeats = self.whole_s[name], self._repeats
            replay = self._gpu.captured(stream, work)
            return {
                "sms_ratio": self.num_sms / sms,
                "eager": device_time_s(self._gpu, stream, work, repeats) / whole_s,
                "graph": device_time_s(self._gpu, stream, replay, repeats) / whole_s,
                "beside_other_lane": beside_time_s(
                    self._gpu, stream, work, other, self._others["copy"], max(3, repeats // 3)
                )
                / whole_s,
            }
        finally:
            if told:
                self._gpu.carve_out(None)

    def queue(self, stream: Any, other: Any) -> dict[str, object]:
        def tiny() -> object:
            return self._tiny.add_(1)

        alone_s = self._host_time_s(stream, tiny)
        beside_s = self._beside_s(stream, tiny, other, self._others["copy"], _QUEUED)
        replay = self._gpu.captured(stream, tiny)
        graph_alone_s = statistics.median(self._host_time_s(stream, replay) for _ in range(self._repeats))
        graph_beside_s = self._beside_s(stream, replay, other, self._others["triton"], _MANY_QUEUED)
        return {
            "alone_s": alone_s,
            "beside_s": beside_s,
            "ratio": beside_s / alone_s,
            "graph_alone_s": graph_alone_s,
            "graph_beside_s": graph_beside_s,
            "graph_ratio": graph_beside_s / graph_alone_s,
        }

    def _beside_s(self, stream: Any, work: Work, other: Any, other_work: Work, count: int) -> float:
        """Host time of `work` while `count` launches of the other lane are queued."""
        beside = []
        for _ in range(self._repeats):
            with self._gpu.on(other):
                for _ in range(count):
                    other_work()
            beside.append(self._host_time_s(stream, work))
            other.synchronize()
        return statistics.median(beside)

    def switch_s(self) -> float:
        """Host time to move a tiny launch to the next partition's stream and see it done, less that of staying."""
        streams = [stream for lane, _, stream, _ in self.pairs(1) if lane is Lane.DECODE]

        def run_on(stream: Any) -> float:
            return self._host_time_s(stream, lambda: self._tiny.add_(1))

        for stream in streams:
            run_on(stream)
        staying = [run_on(streams[0]) for _ in range(self._repeats * 4)]
        moving = [run_on(streams[i % len(streams)]) for i in range(self._repeats * 4)]
        return statistics.median(moving) - statistics.median(staying)

    def workspace_bytes(self) -> int:
        """What torch's allocator takes more when a stream multiplies for the first time."""
        before = self._gpu.reserved_bytes()
        stream = self._streams.stream(Lane.DECODE, self._streams.step_sms)
        with self._gpu.on(stream):
            self.own["product"]()
        stream.synchronize()
        return self._gpu.reserved_bytes() - before

    def _host_time_s(self, stream: Any, work: Work) -> float:
        started_s = time.perf_counter()
        with self._gpu.on(stream):
            work()
        stream.synchronize()
        return time.perf_counter() - started_s


def make_works(device: torch.device, matrix_size: int, copy_bytes: int) -> dict[str, Work]:
    dtype = torch.bfloat16
    left = torch.randn(matrix_size, matrix_size, dtype=dtype, device=device)
    product = torch.empty_like(left)
    weight = torch.randn(matrix_size, _WIDER * matrix_size, dtype=dtype, device=device)
    few_product = torch.empty(len(left[:_FEW_ROWS]), _WIDER * matrix_size, dtype=dtype, device=device)
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    operators = TritonOperators()
    return {
        "product": lambda: torch.mm(left, left, out=product),
        "product of few rows": lambda: torch.mm(left[:_FEW_ROWS], weight, out=few_product),
        "copy": lambda: target.copy_(source),
        "triton": lambda: operators.silu_product(left),
    }


def ask(lanes: Lanes, kept: KeptRows, *, stride: int, only: Sequence[str] = QUESTIONS) -> None:
    kept.note({"workspace_bytes": lanes.workspace_bytes(), "switch_s": lanes.switch_s(), "whole_s": lanes.whole_s})
    pairs = list(lanes.pairs(stride))
    if "census" in only:
        for lane, sms, stream, other in lanes.pairs(1):  # of every share: any two may be in force at once
            key = {"question": "census", "lane": lane.value, "sms": sms, "work": ""}
            kept.attempt(key, lambda ends=(stream, other): lanes.census(*ends))
        note_combinations(kept, lanes.num_sms)
    questions: list[tuple[str, str, Callable[[int, Any, Any], Mapping[str, object]]]] = [
        ("queue", "", lambda sms, stream, other: lanes.queue(stream, other)),
        *(
            ("speed", name, lambda sms, stream, other, name=name: lanes.speed(name, sms, stream, other))
            for name in lanes.whole_s
        ),
    ]
    asked = [(question, pair) for question in questions if question[0] in only for pair in pairs]
    for (question, work, answer), (lane, sms, stream, other) in track(
        asked, description="questions", console=Console(stderr=True)
    ):
        key = {"question": question, "lane": lane.value, "sms": sms, "work": work}
        kept.attempt(key, lambda answer=answer, sms=sms, ends=(stream, other): answer(sms, *ends))


def overlapping(rows: Sequence[Row], num_sms: int) -> dict[str, object]:
    """Of all decode and prefill shares that fit the device together, how many were checked, and those with SMs in
    common: a lane's launch goes on while the other one's share changes.
    """
    census = [row for row in rows if row["question"] == "census"]
    by_lane = {lane: [row for row in census if row["lane"] == lane.value] for lane in Lane}
    pairs = [
        (decode, prefill)
        for decode in by_lane[Lane.DECODE]
        for prefill in by_lane[Lane.PREFILL]
        if decode["sms"] + prefill["sms"] <= num_sms
    ]
    shared = [
        {"decode_sms": decode["sms"], "prefill_sms": prefill["sms"], "shared": sorted(common)}
        for decode, prefill in pairs
        if (common := set(decode["sm_ids"]) & set(prefill["sm_ids"]))
    ]
    return {"checked": len(pairs), "overlapping": shared}


def note_combinations(kept: KeptRows, num_sms: int) -> None:
    found = overlapping(kept.rows, num_sms)
    kept.note({"combinations": found})
    if found["overlapping"]:
        kept.failures["combinations"] = f"shares with SMs in common: {found['overlapping']}"[:500]
        kept.note({"failures": kept.failures})


def print_tables(kept: KeptRows) -> None:
    for question in ("census", "queue", "speed"):
        rows = [row for row in kept.rows if row["question"] == question]
        if rows:
            fields = [name for name in rows[0] if name not in ("question", "sm_ids")]
            columns = {f: f"{{{f}:.3g}}" if isinstance(rows[0][f], float) else f"{{{f}}}" for f in fields}
            print_table(rows, {name.replace("_", " "): cell for name, cell in columns.items()}, title=question)
    Console().print(kept.facts)


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    if options.queues is not None:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(options.queues)
    device = open_cuda_device()
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    streams = open_partition_streams(device, num_sms)
    kept.note_gpu(cuda_device_spec(device, step_sms=streams.step_sms), {"partitioned_by": streams.kind})
    kept.note({"hardware_queues": os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]})
    lanes = Lanes(CudaGpu(device), streams, device, num_sms=num_sms, repeats=5 if options.quick else 15)
    ask(lanes, kept, stride=3 if options.quick else 1, only=options.only or QUESTIONS)
    torch.cuda.synchronize()
    streams.close()


def main() -> None:
    parser = make_parser(__doc__, quick="every third partition")
    parser.add_argument("--only", action="append", choices=QUESTIONS, help="default: all")
    parser.add_argument("--queues", type=int, help="hardware queues (CUDA_DEVICE_MAX_CONNECTIONS; default: muxfleet's)")
    run_script(parser, ROW_KEY, measure_on_gpu, print_tables, draw_questions)


if __name__ == "__main__":
    main()
