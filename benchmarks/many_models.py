"""A unit of 2, 4, 8 and 16 small models in virtual time: what several decode lanes are worth.

    python benchmarks/many_models.py [--quick] [--json FILE]
    python benchmarks/many_models.py --models 8 --variant "mux, 1 lane" --rate 12

Llama-shaped models of 1, 3 and 8 B parameters (in turn 1, 3, 1, 8) in one unit on an H200 by the roofline, chats with
the same popularity each, a first token within 1 s and gaps of 50 ms at most. Decode steps of several models share the
memory bandwidth and the host's thread (pdmux_actor/executor/simulated.py). Reported is, of the requests that arrive in
the last three quarters of `--seconds`, the share that has its first token and every gap in time, with the median and
99th percentile of gaps; `at once` is how many decodes ran at once on average while any did.
"""

import math
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from engines.model_specs import LLAMA_3_1B, LLAMA_3_3B, LLAMA_3_8B
from fleets.virtual_fleet import Coming, VirtualFleet, unit_design
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts
from rich.console import Console
from rich.progress import track

from deploy.simulation.engine import EngineDesign
from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.gpus.h200 import DEVICE as H200
from profiler.specs import ModelSpec

SLO = Slo(ttft_s=1.0, tbt_s=0.05)
KV_POOL_BYTES = 24 << 30
BLOCK_BYTES = 64 * 1024
MAX_MODEL_LEN = 8192
COUNTS = (2, 4, 8, 16)
RATES_PER_S = (10.0, 20.0, 30.0, 40.0)
_WARM_SHARE = 0.25
_MEAN_PROMPT, _MEAN_OUTPUT = 230, 200
_SPREAD = 0.8  # of the lengths' logarithms

SHAPES = (("1b", LLAMA_3_1B), ("3b", LLAMA_3_3B), ("1b", LLAMA_3_1B), ("8b", LLAMA_3_8B))

VARIANTS: Mapping[str, tuple[str, int]] = {
    "prefill_first": ("prefill_first", 1),
    **{f"adbs, {n} lane{'s' * (n > 1)}": ("adbs", n) for n in (1, 2, 4)},
    **{f"mux, {n} lane{'s' * (n > 1)}": ("mux", n) for n in (1, 2, 3, 4)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    count: int
    variant: str
    rate_per_s: float


def specs_of(count: int) -> dict[str, ModelSpec]:
    return {f"{SHAPES[i % len(SHAPES)][0]}-{i}": SHAPES[i % len(SHAPES)][1] for i in range(count)}


def design_of(point: Point) -> EngineDesign:
    policy, lanes = VARIANTS[point.variant]
    return unit_design(
        specs_of(point.count),
        policy=policy,
        settings=SchedulerSettings(max_running_sequences=256, decode_lanes=lanes),
        max_model_len=MAX_MODEL_LEN,
        total_blocks=KV_POOL_BYTES // BLOCK_BYTES,
        block_bytes=BLOCK_BYTES,
    )


def coming_chats(point: Point, seconds: float, seed: int) -> Iterator[Coming]:
    rng = random.Random(seed)
    models, at_s = list(specs_of(point.count)), 0.0
    while (at_s := at_s + rng.expovariate(point.rate_per_s)) < seconds:
        prompt_tokens, output_tokens = (_length(rng, mean) for mean in (_MEAN_PROMPT, _MEAN_OUTPUT))
        yield Coming(
            at_s=at_s,
            model=rng.choice(models),
            prompt=partial(_prompt, rng.getrandbits(32), prompt_tokens),
            output_tokens=output_tokens,
            slo=SLO,
        )


def _length(rng: random.Random, mean: float) -> int:
    return max(4, min(2048, round(rng.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD))))


def _prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1000, 100_000), k=length))


def measure(point: Point, *, seconds: float, seed: int) -> dict[str, Any]:
    fleet = VirtualFleet(design_of(point), SLO)
    fleet.send(coming_chats(point, seconds, seed))
    at_once: list[float] = []
    for second in range(1, int(seconds) + 1):
        fleet.advance(float(second))
        at_once.append(fleet.units["u0"].load_report().decode_launches_at_once)
    fleet.settle()
    judged = [sent for sent in fleet.sent.values() if sent.coming.at_s >= _WARM_SHARE * seconds]
    gaps_s = sorted(gap_s for sent in judged for gap_s in sent.times.gaps_s)
    if not gaps_s:
        raise SystemExit(f"--rate {point.rate_per_s:g} for {seconds:g} s: no request to judge; raise one of them")
    firsts_s = [sent.times.ttft_s for sent in judged if math.isfinite(sent.times.ttft_s)]
    return {
        "models": point.count,
        "variant": point.variant,
        "rate_per_s": point.rate_per_s,
        "requests": len(judged),
        "in_time": round(sum(sent.is_in_time for sent in judged) / len(judged), 4),
        "gap_p50_ms": round(1e3 * gaps_s[len(gaps_s) // 2], 2),
        "gap_p99_ms": round(1e3 * gaps_s[len(gaps_s) * 99 // 100], 2),
        "ttft_p50_ms": round(1e3 * statistics.median(firsts_s), 1) if firsts_s else None,
        "at_once": round(statistics.mean(at_once[len(at_once) // 4 :]), 2),
    }


COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("models", "variant", "rate_per_s", "requests")},
    "in_time": "{in_time:.1%}",
    **{name: f"{{{name}}}" for name in ("gap_p50_ms", "gap_p99_ms", "ttft_p50_ms", "at_once")},
}


def main() -> None:
    parser = make_parser(__doc__, quick="8 models at one rate, for a few seconds")
    parser.add_argument("--models", type=int, nargs="+", choices=COUNTS, metavar="N")
    parser.add_argument("--variant", nargs="+", choices=list(VARIANTS), metavar="NAME", help=", ".join(VARIANTS))
    parser.add_argument("--rate", type=float, nargs="+", metavar="R", help="requests per second; default several")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of arrivals; default 20")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.seconds < 1 or min(args.rate or RATES_PER_S) <= 0:
        parser.error("--seconds takes 1 or more, --rate numbers above 0")
    counts = args.models or ((8,) if args.quick else COUNTS)
    rates = args.rate or ((20.0,) if args.quick else RATES_PER_S)
    points = [
        Point(count=count, variant=variant, rate_per_s=rate)
        for count in counts
        for rate in rates
        for variant in args.variant or VARIANTS
    ]
    seconds = 5.0 if args.quick else args.seconds
    rows = [
        measure(point, seconds=seconds, seed=args.seed)
        for point in track(points, console=Console(stderr=True), transient=True)
    ]
    print_table(rows, COLUMNS, title="models in one unit")
    write_report(args.json, machine_facts(H200, time="virtual"), rows)


if __name__ == "__main__":
    main()
