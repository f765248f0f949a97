"""Speed of the CPU executor over weights of 8 and 4 bits against bfloat16, of one random checkpoint.

    python benchmarks/quantised_weights.py [--json FILE] [--quick] [--threads N] [--clock cpu]

Decode at batch 1 to 8 with a context of 64 to 80 tokens, prefill of 256. The variants take turns within a round;
reported are medians over rounds and, of the rounds' ratios to bfloat16, median and range.
`--clock cpu --threads 1` counts CPU time instead of wall time, for machines that others use too.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

from engines.engine_environment import in_engine_environment
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint, wide_llama_checkpoint
from report.command import add_clock, clock_of, make_parser, print_table, write_report
from report.machine_facts import machine_facts

PROMPT_TOKENS = 64
NEW_TOKENS = 17
BATCHES = (1, 2, 4, 8)
PREFILL_TOKENS = 256
FORMATS = (None, "int8", "int4")


def prompts_of(count: int, length: int) -> list[list[int]]:
    return [[3 + (7 * i + 13 * n) % 600 for n in range(length)] for i in range(count)]


def measured(folder: Path, name: str, rounds: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    from engines.cpu_variants import Ours  # after the affinity is set

    from pdmux_actor.executor.lanes import PinnedThreads

    threads = PinnedThreads()
    variants = {weights or "bfloat16": Ours(folder, "bfloat16", clock, weights, threads) for weights in FORMATS}
    workloads = [(f"decode, batch {n}", prompts_of(n, PROMPT_TOKENS), NEW_TOKENS) for n in BATCHES]
    workloads.append((f"prefill, {PREFILL_TOKENS} tokens", prompts_of(1, PREFILL_TOKENS), 1))
    rows: list[dict[str, object]] = []
    for workload, prompts, new_tokens in workloads:
        admitted = {variant: engine.admit(prompts, new_tokens) for variant, engine in variants.items()}
        speeds: dict[str, list[float]] = {variant: [] for variant in variants}
        for number in range(rounds + 1):
            for variant, engine in variants.items():
                run = engine.generate(admitted[variant], new_tokens)
                if number:  # the first one warms up
                    speeds[variant].append(run.decode_tokens_per_s if new_tokens > 1 else run.prefill_tokens_per_s)
        for variant, engine in variants.items():
            engine.release(admitted[variant])
        ratios = {
            variant: sorted(a / b for a, b in zip(speeds[variant], speeds["bfloat16"], strict=True))
            for variant in variants
        }
        rows.append(
            {
                "model": name,
                "workload": workload,
                "tokens_per_s": {variant: statistics.median(of) for variant, of in speeds.items()},
                "ratios": {variant: (of[0], statistics.median(of), of[-1]) for variant, of in ratios.items()},
            }
        )
    threads.close()
    return rows


def main() -> None:
    parser = make_parser(__doc__, quick="3 rounds, the smaller model left out")
    parser.add_argument("--rounds", type=int, default=9, help="after one that warms up; default 9")
    add_clock(parser)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the checkpoints are written")
    args = parser.parse_args()
    in_engine_environment()
    clock = clock_of(parser, args)
    rounds = 3 if args.quick else args.rounds
    rows = measured(wide_llama_checkpoint(args.cache), "200 M, hidden 1536", rounds, clock)
    if not args.quick:
        rows += measured(llama_checkpoint(args.cache, num_layers=16), "100 M, hidden 768", rounds, clock)
    columns = {
        "model": "{model}",
        "workload": "{workload}",
        **{variant: f"{{tokens_per_s[{variant}]:,.0f}}" for variant in ("bfloat16", "int8", "int4")},
        **{
            f"{variant}/bfloat16": f"{{ratios[{variant}][1]:.2f}} "
            f"({{ratios[{variant}][0]:.2f}}-{{ratios[{variant}][2]:.2f}})"
            for variant in ("int8", "int4")
        },
    }
    print_table(rows, columns, title="tokens/s; ratios with their range over rounds")
    write_report(args.json, machine_facts(), rows, rounds=rounds, clock=args.clock)


if __name__ == "__main__":
    main()
