"""What a greedy tenant does to its neighbour, in virtual time: the gateway's decisions over simulated units.

    python benchmarks/fairness.py [--json FILE] [--quick]

Two tenants, each with an API key of its own, send Poisson arrivals to the same model: the product's `GatewayScheduler`
(admission, queue, routing) over its scheduler on simulated H200s that serve Llama 3.1 8B by the roofline. A run gives
the same figures anywhere. `fair`: each its share. `greedy`: one sends ten times its share. `greedy, one key`: the same
load with nothing to tell the tenants apart. Rounds differ by their arrivals. The time to the first token is parted into
`queue` (in the gateway) and `unit` (from admission on: prefills ahead and its own).
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engines.model_specs import LLAMA_3_8B
from fleets.virtual_fleet import Coming, Sent, VirtualFleet, unit_design
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from router.limits import GatewayLimits

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
GREED = 10.0
PHASES = ("fair", "greedy", "greedy, one key")
MODEL = "llama-8b"
NUM_UNITS = 2
BLOCK_BYTES = 16 * 1024
TOTAL_BLOCKS = 500_000
HOST_S = 1e-4
LIMITS = GatewayLimits(max_queued=256, hold_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`share` of the capacity, for each of the two tenants."""

    share: float
    prompt_tokens: int = 3000
    output_tokens: int = 8


LOADS = (
    Load(share=0.25),
    Load(share=0.35),
    Load(share=0.5),
    Load(share=0.35, prompt_tokens=7000),
    Load(share=0.35, prompt_tokens=1000, output_tokens=64),
)


def new_fleet() -> VirtualFleet:
    design = unit_design(
        {MODEL: LLAMA_3_8B},
        policy="mux",
        settings=SchedulerSettings(),
        max_model_len=8192,
        total_blocks=TOTAL_BLOCKS,
        block_bytes=BLOCK_BYTES,
        host_s=HOST_S,
    )
    return VirtualFleet(design, SLO, limits=LIMITS, num_units=NUM_UNITS)


def poisson(load: Load, tenant: str, key: str, rate_per_s: float, duration_s: float, seed: int) -> Iterator[Coming]:
    """`tenant` is who it is, `key` what the gateway knows it by."""
    draw = random.Random(seed)
    at_s = 1.0
    while (at_s := at_s + draw.expovariate(rate_per_s)) < 1.0 + duration_s:
        start = draw.randrange(100_000)  # no two prompts begin alike
        yield Coming(
            at_s=at_s,
            model=MODEL,
            prompt=partial(_prompt, start, load.prompt_tokens),
            output_tokens=load.output_tokens,
            slo=SLO,
            tenant=key,
            kind=tenant,
        )


def _prompt(start: int, num_tokens: int) -> tuple[int, ...]:
    return tuple(range(start, start + num_tokens))


def capacity_per_s(load: Load) -> float:
    fleet = new_fleet()
    fleet.send(poisson(load, "a", "a", 240_000 / load.prompt_tokens, 20.0, 0))
    answered = []
    for until_s in (6.0, 21.0):
        fleet.advance(until_s)
        answered.append(sum(sent.times.finish is not None for sent in fleet.sent.values()))
    return (answered[1] - answered[0]) / 15.0


def phase(name: str, load: Load, share_per_s: float, duration_s: float, seed: int) -> list[Sent]:
    fleet = new_fleet()
    greedy_key = "neighbour" if name == "greedy, one key" else "greedy"
    greedy_per_s = share_per_s * (1.0 if name == "fair" else GREED)
    fleet.send(poisson(load, "neighbour", "neighbour", share_per_s, duration_s, seed))
    fleet.send(poisson(load, "greedy", greedy_key, greedy_per_s, duration_s, seed + 1))
    fleet.advance(duration_s + 30.0)
    return list(fleet.sent.values())


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(times_s: Sequence[float]) -> dict[str, float]:
    return {p: round(1e3 * percentile(times_s, q), 1) for p, q in (("p50", 0.5), ("p99", 0.99))}


def row_of(
    name: str, load: Load, share_per_s: float, rounds: Sequence[Sequence[Sent]], fair: Sequence[Sequence[Sent]]
) -> dict[str, Any]:
    def answered_of(of: Sequence[Sequence[Sent]]) -> list[Sent]:
        return [s for one in of for s in one if s.coming.kind == "neighbour" and s.times.token_times_s]

    def ttft_s(of: Sequence[Sequence[Sent]]) -> list[float]:
        return [sent.times.ttft_s for sent in answered_of(of)]

    queue_s = [s.admitted_s - s.coming.at_s for s in answered_of(rounds) if s.admitted_s is not None]
    unit_s = [all_s - waited_s for all_s, waited_s in zip(ttft_s(rounds), queue_s, strict=True)]

    ratios = [
        percentile(ttft_s([one]), 0.99) / percentile(ttft_s([base]), 0.99)
        for one, base in zip(rounds, fair, strict=True)
    ]
    of_tenant = {t: [s for one in rounds for s in one if s.coming.kind == t] for t in ("neighbour", "greedy")}
    answered = {tenant: [bool(s.times.token_times_s) for s in sent] for tenant, sent in of_tenant.items()}
    in_time = {tenant: sum(s.is_in_time for s in sent) / max(1, len(sent)) for tenant, sent in of_tenant.items()}
    return {
        "share_of_capacity": load.share,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "phase": name,
        "capacity_requests_per_s": round(share_per_s / load.share, 2),
        "neighbour_requests_per_s": round(share_per_s, 2),
        "greedy_requests_per_s": round(share_per_s * (1.0 if name == "fair" else GREED), 2),
        "neighbour_ttft_ms": milliseconds(ttft_s(rounds)),
        "neighbour_queue_ms": milliseconds(queue_s),
        "neighbour_unit_ms": milliseconds(unit_s),
        "p99_ratio_to_fair": round(percentile(ttft_s(rounds), 0.99) / percentile(ttft_s(fair), 0.99), 3),
        "p99_ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        **{f"{t}_answered": {"sent": len(done), "answered": sum(done)} for t, done in answered.items()},
        **{f"{t}_request_attainment": round(share, 4) for t, share in in_time.items()},
    }


COLUMNS: Mapping[str, str] = {
    "share": "{share_of_capacity:.0%}",
    "tokens": "{prompt_tokens}+{output_tokens}",
    "phase": "{phase}",
    "neighbour TTFT p50": "{neighbour_ttft_ms[p50]} ms",
    "p99": "{neighbour_ttft_ms[p99]} ms",
    "of that queue p99": "{neighbour_queue_ms[p99]} ms",
    "unit p99": "{neighbour_unit_ms[p99]} ms",
    "ratio of p99 (rounds)": "{p99_ratio_to_fair} ({p99_ratio_spread[0]}-{p99_ratio_spread[1]})",
    "neighbour": "{neighbour_answered[answered]} of {neighbour_answered[sent]}",
    "greedy": "{greedy_answered[answered]} of {greedy_answered[sent]}",
    "neighbour in time": "{neighbour_request_attainment:.1%}",
}


def main() -> None:
    arguments = make_parser(__doc__, quick="two short rounds").parse_args()
    duration_s, num_rounds = (15.0, 2) if arguments.quick else (30.0, 4)
    rows = []
    for load in LOADS:
        share_per_s = load.share * capacity_per_s(load)
        worlds = {n: [phase(n, load, share_per_s, duration_s, 100 * r) for r in range(num_rounds)] for n in PHASES}
        rows += [row_of(n, load, share_per_s, worlds[n], worlds["fair"]) for n in PHASES]
    print_table(rows, COLUMNS, width=170)
    setting = {"engine": "Llama 3.1 8B on an H200 by the roofline", "units": NUM_UNITS, "greed": GREED}
    write_report(
        arguments.json,
        machine_facts(time="virtual"),
        rows,
        **setting,
        rounds=num_rounds,
        seconds_per_round=duration_s,
    )


if __name__ == "__main__":
    main()
