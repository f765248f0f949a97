"""Speed of the CPU executor against `transformers` on the same random checkpoint (about 100 M parameters) and cores.

    python benchmarks/cpu_executor.py [--json FILE] [--quick] [--threads N] [--clock cpu] [--dtype float32]

Decode at batch 1, 8 and 32 with a context of 241 to 256 tokens, prefill of 256 and 1024 tokens: our executor with
launches made by hand over the real block pool; `generate` with a batch and its default cache; `generate_batch`, its
continuous batching. The variants alternate within a round; reported are medians over rounds and, of the rounds'
ratios, median and range. Then, with two cores or more, what a repartition adds to a job on a lane.

`--clock cpu --threads 1` counts CPU time instead of wall time, for machines that others use too; `generate_batch`
notes wall times itself and is left out then.
"""

import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from report.command import add_clock, clock_of, make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.executor.lanes import LaneThread, PinnedThreads, available_cores

# Enough elements for torch to use every thread of the lane.
_ELEMENTS = 1 << 17


def measure_repartition(rounds: int) -> dict[str, float]:
    """From submit to end in microseconds, alternating; empty where there is a single core."""
    cores = available_cores()
    if len(cores) < 2:
        return {}
    partitions = (cores, cores[: len(cores) // 2])
    threads = PinnedThreads()
    lane = LaneThread("repartition", cores, threads)
    for partition in partitions * 3:  # each partition's threads exist from its first use on
        _job_us(lane, partition)
    taken_us: dict[str, list[float]] = {"same": [], "switched": []}
    for number in range(rounds):
        partition = partitions[number % 2]
        taken_us["switched"].append(_job_us(lane, partition))
        taken_us["same"].append(_job_us(lane, partition))
    threads.close()
    return {
        f"{kind}_p{share}_us": float(np.percentile(values, share))
        for kind, values in taken_us.items()
        for share in (50, 99)
    }


def _job_us(lane: LaneThread, cores: tuple[int, ...]) -> float:
    numbers = torch.ones(_ELEMENTS)
    ended = threading.Event()

    def job() -> None:
        numbers.add_(1.0)
        ended.set()

    started_s = time.perf_counter()
    lane.submit(job, cores)
    ended.wait()
    return 1e6 * (time.perf_counter() - started_s)


if TYPE_CHECKING:
    from engines.cpu_variants import Ours, Theirs

NUM_LAYERS = 16
PROMPT_TOKENS = 240
NEW_TOKENS = 17
DECODE_BATCHES = (1, 8, 32)
PREFILL_TOKENS = (256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """tokens/s of one workload, a value per round."""

    dtype: str
    workload: str
    ours: list[float]
    generate: list[float]
    continuous: list[float]
    same_tokens: bool  # ours and generate's, greedy


def prompts_of(count: int, length: int) -> list[list[int]]:
    return [np.random.default_rng([i, length]).integers(3, 640, length).tolist() for i in range(count)]


def measure(
    ours: "Ours", theirs: "Theirs", *, dtype: str, workload: str, prompts: Sequence[list[int]], rounds: int, wall: bool
) -> Measured:
    """`workload` is decode or prefill: which of the two phases of the same generation is counted."""
    decodes = workload.startswith("decode")
    new_tokens = NEW_TOKENS if decodes else 1
    sequences = ours.admit(prompts, new_tokens)
    speeds: dict[str, list[float]] = {"ours": [], "generate": [], "continuous": []}
    for round_number in range(rounds + 1):
        runs = {
            "ours": ours.generate(sequences, new_tokens),
            "generate": theirs.generate(prompts, new_tokens),
        }
        if wall:
            runs["continuous"] = theirs.generate_continuously(prompts, new_tokens)
        if round_number == 0:
            same_tokens = runs["ours"].tokens == runs["generate"].tokens
            continue  # warm-up
        for name, run in runs.items():
            speeds[name].append(run.decode_tokens_per_s if decodes else run.prefill_tokens_per_s)
    ours.release(sequences)
    return Measured(dtype=dtype, workload=workload, same_tokens=same_tokens, **speeds)


COLUMNS: Mapping[str, str] = {
    "dtype": "{dtype}",
    "workload": "{workload}",
    **{name: f"{{medians[{name}]:,.0f}}" for name in ("ours", "generate", "continuous")},
    **{
        f"ours/{name}": f"{{ratios[{name}][1]:.2f}} ({{ratios[{name}][0]:.2f}}-{{ratios[{name}][2]:.2f}})"
        for name in ("generate", "continuous")
    },
    "tokens": "{tokens}",
}


def shown(row: Measured) -> dict[str, object]:
    """Medians over rounds; of ratios least, median and most."""
    values = {"ours": row.ours, "generate": row.generate, "continuous": row.continuous}
    ratios = {name: [a / b for a, b in zip(row.ours, other, strict=False)] for name, other in values.items() if other}
    return {
        **asdict(row),
        "medians": {name: statistics.median(of) for name, of in values.items() if of},
        "ratios": {name: (min(of), statistics.median(of), max(of)) for name, of in ratios.items()},
        "tokens": "same" if row.same_tokens else "differ",
    }


def main() -> None:
    parser = make_parser(__doc__, quick="2 rounds, no batch of 32")
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms up; default 5")
    add_clock(parser)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"), help="default: both")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the checkpoint is written")
    args = parser.parse_args()
    clock = clock_of(parser, args)
    from cpu_executor import measure_repartition
    from engines.cpu_variants import Ours, Theirs

    folder = llama_checkpoint(args.cache, num_layers=NUM_LAYERS)
    rounds = 2 if args.quick else args.rounds
    workloads = [(f"decode, batch {n}", prompts_of(n, PROMPT_TOKENS)) for n in DECODE_BATCHES[: 2 if args.quick else 3]]
    workloads += [(f"prefill, {n} tokens", prompts_of(1, n)) for n in PREFILL_TOKENS]
    measured = []
    started_s = time.perf_counter()
    for dtype in args.dtype or ("float32", "bfloat16"):
        ours, theirs = Ours(folder, dtype, clock), Theirs(folder, dtype, clock)
        for workload, prompts in workloads:
            print(f"{dtype}: {workload}", file=sys.stderr)
            wall = args.clock == "wall"
            measured.append(
                measure(ours, theirs, dtype=dtype, workload=workload, prompts=prompts, rounds=rounds, wall=wall)
            )
        ours.close()
    switches = measure_repartition(200 if args.quick else 1000)
    print_table([shown(row) for row in measured], COLUMNS, title="tokens/s; ratios with their range over rounds")
    if switches:
        print(
            "a job on a lane, from submit to end: "
            f"{switches['same_p50_us']:.0f} us on the partition in force (p99 {switches['same_p99_us']:.0f}), "
            f"{switches['switched_p50_us']:.0f} us after a repartition (p99 {switches['switched_p99_us']:.0f})"
        )
    write_report(
        args.json,
        {**machine_facts(), "seconds": round(time.perf_counter() - started_s)},
        [asdict(row) for row in measured],
        checkpoint=f"{NUM_LAYERS}-layer llama, hidden 768, 12 heads, 4 KV heads, vocabulary 640",
        clock=args.clock,
        rounds=rounds,
        repartition=switches,
    )


if __name__ == "__main__":
    main()
