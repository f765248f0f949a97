"""Steps of muxfleet's engine on this GPU over the least time that memory and matrix units allow.

    python benchmarks/gpu/floors.py [--model llama-3-8b] [--quick] [--json FILE [--resume] [--plot PNG]]

Random weights. Decode and prefill on the whole GPU against their floors, both on the partitions' SMs, decode beside a
prefill on the remaining SMs, and what a repartition and the captured graphs cost ("all_graphs": those that a unit with
these limits captures when the model is attached). Floors: bytes that must be read
(weights without the embedding, and the batch's KV) over the measured copy bandwidth; the layers' FLOPs over the
measured matrix rate.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines.hand_made_launches import GREEDY, HandMadeLaunches, median_and_spread_s
from gpu.floor_profile import write_floor_profile
from gpu.random_models import SHAPES, hold_random_model
from gpu.script import KeptRows, draw_floors, make_parser, run_script
from report.command import print_table
from rich.console import Console
from rich.progress import track

from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import SamplingParams
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.scheduling.launch import decode_shares
from placement.launch_limits import LaunchLimits
from profiler.partition_rates import PartitionRate
from profiler.specs import DeviceSpec, ModelSpec

BLOCK_BYTES = 16 * 1024
LAUNCH_LIMITS = LaunchLimits(batch_tokens=8192, sequences=128)  # what the largest cases ask of a unit
AHEAD_STEPS = 4
SKEW = 64
SAMPLINGS: Mapping[str, SamplingParams] = MappingProxyType(
    {
        "drawn": SamplingParams(max_tokens=1, temperature=0.8, seed=1),
        "filtered": SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9, top_k=50, seed=1),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """(batch, context tokens) of decodes and tokens of prefills on the whole GPU; the first of each per partition."""

    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[int, ...]
    partition_stride: int
    repeats: int
    skewed: tuple[tuple[int, int], ...] = ()  # decodes in which one sequence has SKEW times as many tokens
    sampled: tuple[tuple[int, int], ...] = ()  # decodes that draw their tokens, from all and from filtered ones


FULL = Sizes(
    decodes=((32, 1024), (1, 1024), (128, 1024), (1, 8192), (32, 8192)),
    prefills=(2048, 8192, 128),
    partition_stride=1,
    repeats=15,
    skewed=((64, 512),),
    sampled=((32, 1024), (128, 1024)),
)
QUICK = Sizes(
    decodes=((32, 1024),), prefills=(2048,), partition_stride=2, repeats=7, skewed=((64, 512),), sampled=((32, 1024),)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`measured`: decode, skewed (a decode step in which one sequence is SKEW times as long), drawn and filtered
    (decode steps of requests that are not greedy), prefill, ahead (a decode step of several without the host between
    them), or beside (a decode step while the remaining SMs prefill).
    """

    measured: str
    batch: int
    tokens: int
    sms: int


ROW_KEY = ("measured", "batch", "tokens", "sms")


def decode_floor_s(spec: ModelSpec, device: DeviceSpec, batch: int, context_tokens: float) -> float:
    """Weights are read once, the embedding only where tokens stand; KV of every sequence once."""
    embedding_bytes = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size * spec.dtype_bytes
    read_bytes = spec.weight_bytes - embedding_bytes + batch * context_tokens * spec.kv_bytes_per_token
    return read_bytes / device.memory_bandwidth_bytes_per_s


def prefill_floor_s(spec: ModelSpec, device: DeviceSpec, tokens: int) -> float:
    """2 FLOPs per weight of a layer and token, and causal attention's two products over half of the square; of a short
    prompt, the reading of the weights.
    """
    embeddings = spec.vocab_size * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
    products = 2.0 * (spec.num_active_params - embeddings) * tokens
    attention = 2.0 * spec.num_layers * spec.num_heads * spec.head_dim * tokens**2
    read_s = decode_floor_s(spec, device, 1, tokens)
    return max(read_s, (products + attention) / device.peak_flops_per_s)


def cases(device: DeviceSpec, sizes: Sizes) -> Iterator[Case]:
    """The whole GPU first, then partitions from large to small."""
    whole, step = device.num_sms, device.partition_granularity_sms
    for batch, context in sizes.decodes:
        yield Case(measured="decode", batch=batch, tokens=context, sms=whole)
        yield Case(measured="ahead", batch=batch, tokens=context, sms=whole)
    for batch, context in sizes.skewed:
        yield Case(measured="skewed", batch=batch, tokens=context, sms=whole)
    for batch, context in sizes.sampled:
        for sampling in SAMPLINGS:
            yield Case(measured=sampling, batch=batch, tokens=context, sms=whole)
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
    lengths = [case.tokens] * case.batch
    if case.measured == "skewed":
        lengths[-1] *= SKEW
    with launches.holding_lengths(lengths, SAMPLINGS.get(case.measured, GREEDY)) as sequences:
        if is_prefill:
            times_s = [
                launches.time_s(launches.prefill_launch(sequences), 1, warm_ups=int(i == 0))[0]
                for i in range(sizes.repeats)
            ]
            floor_s = prefill_floor_s(spec, device, case.tokens) * device.num_sms / case.sms
        else:
            steps = AHEAD_STEPS if case.measured == "ahead" else 1
            launch = launches.decode_launch(sequences, steps)
            floor_s = decode_floor_s(spec, device, case.batch, sum(lengths) / case.batch)
            if case.measured == "beside":
                with launches.holding(1, sizes.prefills[0]) as prompts:
                    times_s = launches.time_beside_s(launch, prompts, sizes.repeats)
            else:
                times_s = [time_s / steps for time_s in launches.time_s(launch, sizes.repeats)]
    seconds, spread_s = median_and_spread_s(times_s)
    return {
        "seconds": seconds,
        "spread_s": spread_s,
        "low_s": statistics.quantiles(times_s, n=4, method="inclusive")[0],
        "high_s": statistics.quantiles(times_s, n=10, method="inclusive")[-1],
        "repeats": len(times_s),
        "floor_s": floor_s,
        "over_floor": seconds / floor_s,
    }


def measure_repartition_s(launches: HandMadeLaunches, repeats: int) -> dict[str, float]:
    """A decode step whose partition changes before every step, against one that keeps its partition."""
    whole, step = launches.executor.device.num_sms, launches.executor.device.partition_granularity_sms
    shares = (whole // 2 // step * step, whole // 2 // step * step + step)
    kept, changed, submitting = [], [], []
    with launches.holding(2, 32) as sequences:
        launch = launches.decode_launch(sequences)
        for share in shares:
            launches.partition(whole - share, share)
            launches.time_s(launch, 2)
        for i in range(repeats):
            kept += launches.time_s(launch, 1, warm_ups=0)
            started_s = time.perf_counter()
            launches.partition(whole - shares[i % 2], shares[i % 2])
            submitting.append(time.perf_counter() - started_s)
            changed += launches.time_s(launch, 1, warm_ups=0)
    return {
        "step_s": median_and_spread_s(kept)[0],
        "step_after_repartition_s": median_and_spread_s(changed)[0],
        "repartition_call_s": median_and_spread_s(submitting)[0],
    }


def eager_layer_s(launches: HandMadeLaunches, tokens: int, repeats: int) -> float:
    """What the host takes to launch a layer of a prompt: of prompts for which that is long, layers are captured
    (launch_buckets.py assumes a time). `tokens`: too many for that.
    """
    launches.partition(launches.executor.device.num_sms, 0)
    taken_s = []
    with launches.holding(1, tokens) as prompts:
        for _ in range(1 + repeats):
            launch = launches.prefill_launch(prompts)
            began_s = time.perf_counter()
            launches.submit(launch)
            taken_s.append(time.perf_counter() - began_s)
            launches.drain()
    return statistics.median(taken_s[1:]) / launches.info.spec.num_layers


def run(executor: TorchCudaExecutor, shape: str, sizes: Sizes, kept: KeptRows, *, dtype: str = "bfloat16") -> None:
    info = hold_random_model(executor, shape, dtype)
    started_s = time.perf_counter()
    launches = HandMadeLaunches(executor, info)
    kept.note({"all_graphs": {**executor.graph_facts, "seconds": time.perf_counter() - started_s}})
    if "repartition" not in kept.facts:
        kept.note({"repartition": measure_repartition_s(launches, sizes.repeats)})
    kept.note({"eager_layer_s": eager_layer_s(launches, sizes.prefills[0], sizes.repeats)})
    chosen = list(cases(executor.device, sizes))
    for case in track(chosen, description="steps", console=Console(stderr=True)):
        kept.attempt(asdict(case), lambda case=case: measure(launches, case, sizes))
        kept.note({**executor.graph_facts, "arenas": executor.arena_facts})


def print_tables(kept: KeptRows) -> None:
    times = {"ms": "seconds", "spread": "spread_s", "floor ms": "floor_s"}
    columns = {"step": "{measured}", "batch": "{batch}", "tokens": "{tokens}", "SMs": "{sms}"}
    columns |= {name: f"{{{name}:.2f}}" for name in times} | {"over floor": "{over_floor:.2f}"}
    print_table([row | {name: 1e3 * row[key] for name, key in times.items()} for row in kept.rows], columns)
    Console().print(kept.facts)


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    executor = open_cuda_executor(
        kv_pool_bytes=int(options.kv_gib * (1 << 30)),
        block_bytes=BLOCK_BYTES,
        captures=not options.eager,
        launch_limits=LAUNCH_LIMITS,
    )
    kept.note_gpu(executor.device, executor.chosen)
    shares = [*decode_shares(executor.device), executor.device.num_sms]
    rates = executor.partition_rates(shares[:: 2 if options.quick else 1])
    kept.note({"model": options.model, "partition_rates": [asdict(rate) for rate in rates]})
    sizes = QUICK if options.quick else FULL
    run(executor, options.model, sizes, kept)
    if options.profile is not None:
        keep_profile(options.profile, kept, executor.device, options.model, rates, sizes)
    executor.close()


def keep_profile(
    path: Path, kept: KeptRows, device: DeviceSpec, model: str, rates: Sequence[PartitionRate], sizes: Sizes
) -> None:
    """A machine without pyarrow has its rows all the same."""
    spec = DecoderConfig.from_config(model, SHAPES[model], "bfloat16").spec
    try:
        write_floor_profile(
            path, kept.rows, model=model, spec=spec, device=device, rates=rates, beside_tokens=sizes.prefills[0]
        )
    except ImportError as missing:
        kept.note({"profile": f"not written: {missing}"})


def main() -> None:
    parser = make_parser(__doc__, quick="one decode and one prefill per second partition")
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--kv-gib", type=float, default=48.0, help="KV pool")
    parser.add_argument("--eager", action="store_true", help="decode launch by launch")
    parser.add_argument("--profile", type=Path, metavar="PARQUET", help="write a profile that pools can name")
    run_script(parser, ROW_KEY, measure_on_gpu, print_tables, draw_floors)


if __name__ == "__main__":
    main()
