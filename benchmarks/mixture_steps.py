"""Predicted steps of a mixture of experts against those of the CPU executor, beside a dense model of as many active
parameters.

    python benchmarks/mixture_steps.py [--json FILE] [--quick]

On one core, by CPU time, so that neighbours on the machine do not count; both models in turns within a round, medians
over rounds. The roofline has the rates that the executor measures of its core when it starts, by wall time: what they
are wrong by is in both models' ratios, and `mixture / dense` is without it.
"""

import os
import statistics
import time
from pathlib import Path

from engines.llama_checkpoint import DEFAULT_CACHE, dense_beside_mixture, mixture_checkpoint
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.models.checkpoint import read_json
from profiler.latency import ChunkShape
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec

PROMPT_TOKENS = 64
NEW_TOKENS = 9
BATCHES = (1, 4, 16)
PREFILLS = (64, 256)
DTYPE = "bfloat16"


def measured_device() -> DeviceSpec:
    from pdmux_actor.executor.torch_cpu import TorchCpuExecutor  # after the affinity is set

    executor = TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=1 << 14, num_cores=1)
    device = executor.device
    executor.close()
    return device


def measured(folders: dict[str, Path], rounds: int, device: DeviceSpec) -> list[dict[str, object]]:
    from engines.cpu_variants import Ours  # as above

    engines = {name: Ours(folder, DTYPE, time.process_time) for name, folder in folders.items()}
    specs = {
        name: ModelSpec.from_config(read_json(name, folder, "config.json"), DTYPE) for name, folder in folders.items()
    }
    latency = RooflineLatency(device)
    workloads = [("decode", batch, PROMPT_TOKENS, NEW_TOKENS) for batch in BATCHES]
    workloads += [("prefill", 1, tokens, 1) for tokens in PREFILLS]
    rows: list[dict[str, object]] = []
    for kind, batch, tokens, new_tokens in workloads:
        prompts = [[3 + (7 * i + 13 * n) % 600 for n in range(tokens)] for i in range(batch)]
        admitted = {name: engine.admit(prompts, new_tokens) for name, engine in engines.items()}
        times_s: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(rounds + 1):
            for name, engine in engines.items():
                run = engine.generate(admitted[name], new_tokens)
                if number:  # the first one warms up
                    decoded_s = batch / run.decode_tokens_per_s if kind == "decode" else 0.0
                    times_s[name].append(decoded_s if kind == "decode" else tokens / run.prefill_tokens_per_s)
        row: dict[str, object] = {"workload": f"{kind}, {f'batch {batch}' if kind == 'decode' else f'{tokens} tokens'}"}
        ratios = {}
        for name, engine in engines.items():
            engine.release(admitted[name])
            if kind == "decode":
                predicted_s = latency.decode_s(specs[name], [tokens + new_tokens // 2] * batch, 1)
            else:
                predicted_s = latency.prefill_s(specs[name], [ChunkShape(tokens)], 1)
            median_s = statistics.median(times_s[name])
            ratios[name] = predicted_s / median_s
            row[name] = {"measured_ms": median_s * 1e3, "predicted_ms": predicted_s * 1e3, "ratio": ratios[name]}
        rows.append({**row, "mixture_to_dense": ratios["mixture"] / ratios["dense"]})
    for engine in engines.values():
        engine.close()
    return rows


def main() -> None:
    parser = make_parser(__doc__, quick="3 rounds")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the checkpoints are written")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    folders = {"dense": dense_beside_mixture(args.cache), "mixture": mixture_checkpoint(args.cache)}
    rounds = 3 if args.quick else 9
    rows = measured(folders, rounds, measured_device())
    columns = {"workload": "{workload}"}
    for name in folders:
        columns[f"{name}: measured ms"] = f"{{{name}[measured_ms]:.1f}}"
        columns[f"predicted / measured, {name}"] = f"{{{name}[ratio]:.2f}}"
    columns["mixture / dense"] = "{mixture_to_dense:.2f}"
    print_table(rows, columns)
    write_report(args.json, machine_facts(), rows, rounds=rounds)


if __name__ == "__main__":
    main()
