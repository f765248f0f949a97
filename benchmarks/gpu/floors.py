"""Steps of muxfleet's engine on this GPU over the least time that memory and matrix units allow.

    python benchmarks/gpu/floors.py [--model llama-3-8b] [--quick] [--json FILE]

Random weights. Three tables: decode and prefill on the whole GPU against their floors, both against the partition's
SMs, and what a repartition and the captured graphs cost. Floors: bytes that must be read (weights without the
embedding, and the batch's KV) over the measured copy bandwidth; the layers' FLOPs over the measured matrix rate.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.launches import HandMadeLaunches, median_and_spread_s
from gpu.random_models import SHAPES, random_model
from machine_facts import machine_facts, write_report
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor, open_cuda_executor
from pdmux_actor.models.triton_operators import TritonOperators
from profiler.specs import DeviceSpec, ModelSpec

BLOCK_BYTES = 16 * 1024


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
class Row:
    measured: str
    batch: int
    tokens: int
    sms: int
    seconds: float
    spread_s: float
    floor_s: float
    over_floor: float


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


def measure(launches: HandMadeLaunches, sizes: Sizes) -> list[Row]:
    device, spec = launches.executor.device, launches.info.spec
    whole, step = device.num_sms, device.partition_granularity_sms
    shares = [whole, *range(whole - whole % step, 0, -step * sizes.partition_stride)]
    rows = []
    for sms in track(dict.fromkeys(shares), description="partitions"):
        on_whole = sms == whole
        for batch, context in sizes.decodes if on_whole else sizes.decodes[:1]:
            launches.partition(0 if on_whole else whole - sms, sms)
            sequences = launches.sequences(batch, context, room_tokens=8)
            seconds, spread_s = median_and_spread_s(launches.time_s(launches.decode_launch(sequences), sizes.repeats))
            floor_s = decode_floor_s(spec, device, batch, context)
            rows.append(_row("decode", batch, context, sms, seconds, spread_s, floor_s))
            launches.free(sequences)
        for tokens in sizes.prefills if on_whole else sizes.prefills[:1]:
            launches.partition(sms, 0 if on_whole else whole - sms)
            sequences = launches.sequences(1, tokens, room_tokens=8)
            times = [
                launches.time_s(launches.prefill_launch(sequences), 1, warm_ups=i == 0) for i in range(sizes.repeats)
            ]
            seconds, spread_s = median_and_spread_s([t for (t,) in times])
            floor_s = prefill_floor_s(spec, device, tokens) * whole / sms
            rows.append(_row("prefill", 1, tokens, sms, seconds, spread_s, floor_s))
            launches.free(sequences)
    return rows


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


def run(executor: TorchCudaExecutor, shape: str, sizes: Sizes, *, dtype: str = "bfloat16") -> dict[str, object]:
    loaded = random_model(
        shape, device=executor.torch_device, block_bytes=executor.block_bytes, dtype=dtype, operators=TritonOperators()
    )
    executor.hold(loaded)
    launches = HandMadeLaunches(executor, loaded.info)
    rows = measure(launches, sizes)
    repartition = measure_repartition_s(launches, sizes.repeats)
    return {
        "rows": [asdict(row) for row in rows],
        "repartition": repartition,
        "graph_memory_share": executor.graph_bytes / executor.device.memory_bytes,
        "partitioned_by": executor.partitioning,
    }


def _row(measured: str, batch: int, tokens: int, sms: int, seconds: float, spread_s: float, floor_s: float) -> Row:
    return Row(
        measured=measured,
        batch=batch,
        tokens=tokens,
        sms=sms,
        seconds=seconds,
        spread_s=spread_s,
        floor_s=floor_s,
        over_floor=seconds / floor_s,
    )


def print_tables(result: dict[str, object]) -> None:
    table = Table("step", "batch", "tokens", "SMs", "ms", "spread", "floor ms", "over floor")
    rows = result["rows"]
    assert isinstance(rows, list)
    for row in rows:
        cells = (row["measured"], row["batch"], row["tokens"], row["sms"])
        times = (f"{1e3 * row[key]:.2f}" for key in ("seconds", "spread_s", "floor_s"))
        table.add_row(*map(str, cells), *times, f"{row['over_floor']:.2f}")
    Console().print(table)
    Console().print({key: value for key, value in result.items() if key != "rows"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--kv-gib", type=float, default=48.0, help="KV pool")
    parser.add_argument("--quick", action="store_true", help="one decode and one prefill per second partition")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    try:
        executor = open_cuda_executor(kv_pool_bytes=int(args.kv_gib * (1 << 30)), block_bytes=BLOCK_BYTES)
    except DeviceUnavailable as error:
        sys.exit(str(error))
    result = run(executor, args.model, QUICK if args.quick else FULL)
    print_tables(result)
    if args.json:
        write_report(args.json, {**machine_facts(executor.device), "model": args.model}, [result])
    executor.close()


if __name__ == "__main__":
    main()
