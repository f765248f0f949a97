"""Steps of muxfleet's engine on this GPU over the least time that memory and matrix units allow.

    python benchmarks/gpu/floors.py [--model llama-3-8b] [--quick] [--json FILE [--resume] [--plot PNG]]

Random weights. Decode and prefill on the whole GPU against their floors, both on the partitions' SMs, decode beside a
prefill on the remaining SMs, and what a repartition and the captured graphs cost. Floors: bytes that must be read
(weights without the embedding, and the batch's KV) over the measured copy bandwidth; the layers' FLOPs over the
measured matrix rate.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.charts import draw_floors, draw_report
from gpu.kept_rows import KeptRows, add_arguments, check_arguments, gpu_facts
from gpu.launches import HandMadeLaunches, median_and_spread_s
from gpu.random_models import SHAPES, random_model
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor, open_cuda_executor
from pdmux_actor.models.triton_operators import TritonOperators
from profiler.specs import DeviceSpec, ModelSpec

BLOCK_BYTES = 16 * 1024
AHEAD_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """(batch, context tokens) of decodes and tokens of prefills on the whole GPU; the first of each per partition."""

    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[int, ...]
    partition_stride: int
    repeats: int


FULL = Sizes(
    decodes=((32, 1024), (1, 1024), (128, 1024), (1, 8192), (32, 8192)),
    prefills=(2048, 8192),
    partition_stride=1,
    repeats=15,
)
QUICK = Sizes(decodes=((32, 1024),), prefills=(2048,), partition_stride=2, repeats=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`measured`: decode, prefill, ahead (a decode step of several without the host between them), or beside (a decode
    step while the remaining SMs prefill).
    """

    measured: str
    batch: int
    tokens: int
    sms: int


ROW_KEY = ("measured", "batch", "tokens", "sms")


def decode_floor_s(spec: ModelSpec, device: DeviceSpec, batch: int, context_tokens: int) -> float:
    """Weights are read once, the embedding only where tokens stand; KV of every sequence once."""
    embedding_bytes = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size * spec.dtype_bytes
    read_bytes = spec.weight_bytes - embedding_bytes + batch * context_tokens * spec.kv_bytes_per_token
    return read_bytes / device.memory_bandwidth_bytes_per_s


def prefill_floor_s(spec: ModelSpec, device: DeviceSpec, tokens: int) -> float:
    """2 FLOPs per weight of a layer and token, and causal attention's two products over half of the square."""
    embeddings = spec.vocab_size * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
    products = 2.0 * (spec.num_active_params - embeddings) * tokens
    attention = 2.0 * spec.num_layers * spec.num_heads * spec.head_dim * tokens**2
    return (products + attention) / device.peak_flops_per_s


def cases(device: DeviceSpec, sizes: Sizes) -> Iterator[Case]:
    """The whole GPU first, then partitions from large to small."""
    whole, step = device.num_sms, device.partition_granularity_sms
    for batch, context in sizes.decodes:
        yield Case(measured="decode", batch=batch, tokens=context, sms=whole)
        yield Case(measured="ahead", batch=batch, tokens=context, sms=whole)
    for tokens in sizes.prefills:
        yield Case(measured="prefill", batch=1, tokens=tokens, sms=whole)
    batch, context = sizes.decodes[0]
    for sms in range((whole - step) // step * step, 0, -step * sizes.partition_stride):
        yield Case(measured="decode", batch=batch, tokens=context, sms=sms)
        yield Case(measured="beside", batch=batch, tokens=context, sms=sms)
        yield Case(measured="prefill", batch=1, tokens=sizes.prefills[0], sms=sms)


def measure(launches: HandMadeLaunches, case: Case, sizes: Sizes) -> dict[str, object]:
    device, spec = launches.executor.device, launches.info.spec
    rest = device.num_sms - case.sms
    is_prefill = case.measured == "prefill"
    launches.partition(*((case.sms, rest) if is_prefill else (rest, case.sms)))
    sequences = launches.sequences(case.batch, case.tokens, room_tokens=8)
    if is_prefill:
        timed = [launches.time_s(launches.prefill_launch(sequences), 1, warm_ups=i == 0) for i in range(sizes.repeats)]
        times_s = [time_s for (time_s,) in timed]
        floor_s = prefill_floor_s(spec, device, case.tokens) * device.num_sms / case.sms
    else:
        steps = AHEAD_STEPS if case.measured == "ahead" else 1
        launch = launches.decode_launch(sequences, steps)
        floor_s = decode_floor_s(spec, device, case.batch, case.tokens)
        if case.measured == "beside":
            prompts = launches.sequences(1, sizes.prefills[0], room_tokens=8)
            times_s = launches.time_beside_s(launch, prompts, sizes.repeats)
            launches.free(prompts)
        else:
            times_s = [time_s / steps for time_s in launches.time_s(launch, sizes.repeats)]
    launches.free(sequences)
    seconds, spread_s = median_and_spread_s(times_s)
    return {
        **asdict(case),
        "seconds": seconds,
        "spread_s": spread_s,
        "floor_s": floor_s,
        "over_floor": seconds / floor_s,
    }


def measure_repartition_s(launches: HandMadeLaunches, repeats: int) -> dict[str, float]:
    """A decode step whose partition changes before every step, against one that keeps its partition."""
    whole, step = launches.executor.device.num_sms, launches.executor.device.partition_granularity_sms
    sequences = launches.sequences(2, 32, room_tokens=8)
    launch = launches.decode_launch(sequences)
    shares = (whole // 2 // step * step, whole // 2 // step * step + step)
    for share in shares:
        launches.partition(whole - share, share)
        launches.time_s(launch, 2)
    kept, changed, submitting = [], [], []
    for i in range(repeats):
        kept += launches.time_s(launch, 1, warm_ups=0)
        started_s = time.perf_counter()
        launches.partition(whole - shares[i % 2], shares[i % 2])
        submitting.append(time.perf_counter() - started_s)
        changed += launches.time_s(launch, 1, warm_ups=0)
    launches.free(sequences)
    return {
        "step_s": median_and_spread_s(kept)[0],
        "step_after_repartition_s": median_and_spread_s(changed)[0],
        "repartition_call_s": median_and_spread_s(submitting)[0],
    }


def run(executor: TorchCudaExecutor, shape: str, sizes: Sizes, kept: KeptRows, *, dtype: str = "bfloat16") -> None:
    loaded = random_model(
        shape, device=executor.torch_device, block_bytes=executor.block_bytes, dtype=dtype, operators=TritonOperators()
    )
    executor.hold(loaded)
    launches = HandMadeLaunches(executor, loaded.info)
    if "repartition" not in kept.facts:
        kept.note({"repartition": measure_repartition_s(launches, sizes.repeats)})
    chosen = list(cases(executor.device, sizes))
    for case in track(chosen, description="steps", console=Console(stderr=True)):
        if kept.wants(**asdict(case)):
            kept.add(measure(launches, case, sizes))
            captured, failed = executor.graph_counts
            kept.note(
                {
                    "graphs": captured,
                    "graphs_that_failed": failed,
                    "graph_memory_share": executor.graph_bytes / executor.device.memory_bytes,
                }
            )


def print_tables(kept: KeptRows) -> None:
    table = Table("step", "batch", "tokens", "SMs", "ms", "spread", "floor ms", "over floor")
    for row in kept.rows:
        cells = (row["measured"], row["batch"], row["tokens"], row["sms"])
        times = (f"{1e3 * row[key]:.2f}" for key in ("seconds", "spread_s", "floor_s"))
        table.add_row(*map(str, cells), *times, f"{row['over_floor']:.2f}")
    Console().print(table)
    Console().print(kept.facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--kv-gib", type=float, default=48.0, help="KV pool")
    parser.add_argument("--quick", action="store_true", help="one decode and one prefill per second partition")
    add_arguments(parser)
    options = parser.parse_args()
    check_arguments(parser, options)
    if not options.replot:
        try:
            executor = open_cuda_executor(kv_pool_bytes=int(options.kv_gib * (1 << 30)), block_bytes=BLOCK_BYTES)
        except DeviceUnavailable as error:
            sys.exit(str(error))
        kept = KeptRows(options.json, ROW_KEY, resume=options.resume, limit_s=options.limit_s)
        kept.note({**gpu_facts(executor.device, partitioned_by=executor.partitioning), "model": options.model})
        run(executor, options.model, QUICK if options.quick else FULL, kept)
        print_tables(kept)
        executor.close()
    if options.plot:
        draw_report(options.json, options.plot, draw_floors)


if __name__ == "__main__":
    main()
