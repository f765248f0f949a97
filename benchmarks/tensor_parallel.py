"""What two ranks over gloo gain and cost on CPU cores: steps against one rank, and what launches cost who schedules.

One rank on one core, one on two, and two of a core each take turns in one process, in another order in every round. The
first tokens of greedy answers are compared. `submit` is what handing a launch to the executor takes of the thread that
schedules.

    python benchmarks/tensor_parallel.py [--json FILE] [--quick]
"""

import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from engines.hand_made_launches import HandMadeLaunches
from engines.llama_checkpoint import shape_of
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.random_checkpoint import write_random_checkpoint
from pdmux_actor.scheduling.launch import ComputeLaunch
from pdmux_actor.serving.rank_processes import open_tensor_parallel_executor

SHAPE = shape_of(8, 1024, 2816, 16, 8)
POOL_BYTES, BLOCK_BYTES = 64 << 20, 16 * 1024
PROMPT_TOKENS, CONTEXT_TOKENS, ANSWER_TOKENS = 256, 200, 24
BATCHES = (1, 8)


def variants() -> dict[str, tuple[HostingExecutor, int]]:
    """By name, an executor and its ranks."""
    cores = available_cores()
    common = {"kv_pool_bytes": POOL_BYTES, "block_bytes": BLOCK_BYTES}
    two_ranks = open_tensor_parallel_executor(num_ranks=2, num_lanes=2, num_cores=2, default_dtype="float32", **common)
    return {
        "one rank, one core": (TorchCpuExecutor(cores=cores[:1], default_dtype="float32", **common), 1),
        "one rank, two cores": (TorchCpuExecutor(cores=cores[:2], default_dtype="float32", **common), 1),
        "two ranks of one core": (two_ranks, 2),
    }


def answer(launches: HandMadeLaunches) -> list[int]:
    """Greedy tokens behind a prompt."""
    (sequence,) = launches.sequences([PROMPT_TOKENS], ANSWER_TOKENS)
    launch: ComputeLaunch = launches.prefill_launch([sequence])
    for _ in range(ANSWER_TOKENS):
        ((token,),) = launches.run(launch).tokens
        sequence.token_ids.append(token.token_id)
        launch = launches.decode_launch([sequence])
    launches.free([sequence])
    return sequence.token_ids[PROMPT_TOKENS:]


def main() -> None:
    options = make_parser(__doc__, quick="three rounds").parse_args()
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    made: dict[str, HandMadeLaunches] = {}
    executors, draw = variants(), random.Random(0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_random_checkpoint(Path(folder), SHAPE, seed=0)
            for name, (executor, num_ranks) in executors.items():
                info = executor.load_model(ModelSource(model="m", source=folder))
                made[name] = HandMadeLaunches(executor, info, num_ranks=num_ranks)
        answers = {name: answer(launches) for name, launches in made.items()}
        for _ in range(3 if options.quick else 12):
            for name in draw.sample(list(made), len(made)):
                launches = made[name]
                for batch in BATCHES:
                    with launches.holding(batch, CONTEXT_TOKENS) as sequences:
                        found[name, f"decode {batch}"] += launches.time_s(launches.decode_launch(sequences), 8)
                with launches.holding(1, PROMPT_TOKENS) as sequences:
                    found[name, f"prefill {PROMPT_TOKENS}"] += launches.time_s(launches.prefill_launch(sequences), 2, 1)
                with launches.holding(max(BATCHES), CONTEXT_TOKENS) as sequences:
                    for _ in range(8):
                        began_s = time.perf_counter()
                        launches.submit(launches.decode_launch(sequences))
                        found[name, "submit"].append(time.perf_counter() - began_s)
                        launches.drain()
    finally:
        for executor, _ in executors.values():
            executor.close()
    base = next(iter(made))
    rows = []
    for (name, what), seconds in found.items():
        low, median, high = statistics.quantiles(seconds, n=4)
        rows.append(
            {
                "variant": name,
                "what": what,
                "median_ms": median * 1e3,
                "quartiles_ms": [low * 1e3, high * 1e3],
                "of_one_core": median / statistics.median(found[base, what]),
                "of_two_cores": median / statistics.median(found["one rank, two cores", what]),
                "same_tokens": answers[name] == answers[base],
            }
        )
    rows.sort(key=lambda row: str(row["what"]))
    print_table(
        rows,
        {
            "what": "{what}",
            "variant": "{variant}",
            "median (quartiles)": "{median_ms:.2f} ms ({quartiles_ms[0]:.2f}..{quartiles_ms[1]:.2f})",
            "of one core": "{of_one_core:.2f}",
            "of two cores": "{of_two_cores:.2f}",
            "same tokens": "{same_tokens}",
        },
    )
    write_report(options.json, machine_facts(), rows)


if __name__ == "__main__":
    main()
