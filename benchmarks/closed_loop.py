"""What it is worth that the fleet follows demand: a static plan, a plan from scratch each time, and the closed loop.

Every variant runs the same requests on a real fleet (Ray, gateways, HTTP) of its own: twelve models on eight simulated
A40s in real time, and the three demo models on two CPU units. Three things happen one after the other: popularity flips
(the least asked for become the most asked for), one model bursts to thirteen times its rate, and demand shifts over in
the shape of a day between two halves of the models. Attainment counts every request of a phase, lost ones as missed.

    python benchmarks/closed_loop.py --quick --json out.json
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from byte_checkpoint import write_checkpoint
from fleet_process import running_fleet
from machine_facts import machine_facts, write_report
from rich.console import Console
from rich.table import Table

from deploy.demo_fleet import write_demo
from deploy.fleet_report import fleet_report
from deploy.fleet_status import FleetStatus
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES
from profiler.devices import laptop_cpu
from traces.outcome import RequestOutcome
from traces.record import TraceRecord
from traces.replay import replay
from traces.report import SloTarget, summarize
from traces.synthetic import power_law_popularity

VARIANTS: Mapping[str, str] = {"static": "off", "from scratch": "scratch", "closed loop": "auto"}
_LAYERS_7B = (32, 4096, 11008, 32, 8, 128)
_LAYERS_13B = (40, 5120, 13824, 40, 8, 128)
_TIMEOUT_S = 90.0
_BURST = 13.0
_WAVES = 8  # steps of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A fleet and what it is asked. `prompt_tokens`, `output_tokens`: means of lognormal and geometric lengths."""

    name: str
    models: tuple[str, ...]
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    slo: SloTarget
    phase_s: float
    seed: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Rates per model and second, over `span_s` from `start_s`."""

    name: str
    start_s: float
    span_s: float
    rates: Mapping[str, float]


def simulated(*, is_quick: bool) -> Setting:
    return Setting(
        name="8 simulated A40, 12 models",
        models=tuple(f"m{i:02d}" for i in range(12)),
        rate_per_s=6.0,
        prompt_tokens=1400,
        output_tokens=16,
        slo=SloTarget(ttft_s=4.0, tbt_s=0.5),
        phase_s=20.0 if is_quick else 90.0,
    )


def on_cpu(*, is_quick: bool) -> Setting:
    return Setting(
        name="2 CPU units, 3 models",
        models=tuple(DEMO_SHAPES),
        rate_per_s=4.0,
        prompt_tokens=120,
        output_tokens=12,
        slo=SloTarget(ttft_s=1.0, tbt_s=0.3),
        phase_s=12.0 if is_quick else 60.0,
    )


def phases(setting: Setting) -> list[Phase]:
    """The plan that a fleet starts with fits the first."""
    popular = {m: s * setting.rate_per_s for m, s in power_law_popularity(setting.models, 1.2).items()}
    flipped = dict(zip(setting.models, reversed(popular.values()), strict=True))
    calm = {m: 0.5 * r for m, r in popular.items()}
    bursting = setting.models[-1]
    found = [
        Phase(name="as planned", start_s=0.0, span_s=setting.phase_s / 2, rates=popular),
        Phase(name="flip", start_s=0.0, span_s=setting.phase_s, rates=flipped),
        Phase(name="calm", start_s=0.0, span_s=setting.phase_s / 4, rates=calm),
        Phase(name="burst", start_s=0.0, span_s=setting.phase_s, rates=calm | {bursting: _BURST * calm[bursting]}),
        *_day(setting),
    ]
    start_s = 0.0
    placed = []
    for phase in found:
        placed.append(Phase(name=phase.name, start_s=start_s, span_s=phase.span_s, rates=phase.rates))
        start_s += phase.span_s
    return placed


def _day(setting: Setting) -> Iterator[Phase]:
    """One half of the models wakes as the other goes to sleep, by a cosine."""
    half = len(setting.models) // 2
    for step in range(_WAVES):
        awake = 0.5 + 0.45 * np.cos(2 * np.pi * step / _WAVES)
        rates = {
            m: setting.rate_per_s * (awake / half if i < half else (1 - awake) / (len(setting.models) - half))
            for i, m in enumerate(setting.models)
        }
        yield Phase(name="day", start_s=0.0, span_s=setting.phase_s / _WAVES, rates=rates)


def requests(setting: Setting) -> list[TraceRecord]:
    draw = np.random.default_rng(setting.seed)
    records = []
    for phase in phases(setting):
        for model, rate_per_s in phase.rates.items():
            count = draw.poisson(rate_per_s * phase.span_s)
            times = phase.start_s + draw.random(count) * phase.span_s
            prompts = np.clip(draw.lognormal(np.log(setting.prompt_tokens) - 0.18, 0.6, count), 8, 4000)
            outputs = np.clip(draw.geometric(1 / setting.output_tokens, count), 2, 8 * setting.output_tokens)
            records += [
                TraceRecord(arrival_s=float(t), input_tokens=int(i), output_tokens=int(o), model=model)
                for t, i, o in zip(times, prompts, outputs, strict=True)
            ]
    return sorted(records, key=lambda r: r.arrival_s)


# ---- fleets ----


def write_fleet(folder: Path, setting: Setting, *, replan: str) -> Path:
    on_simulator = setting.models[0] not in DEMO_SHAPES
    if on_simulator:
        for i, model in enumerate(setting.models):
            write_checkpoint(folder / "checkpoints" / model, _LAYERS_13B if i % 3 == 2 else _LAYERS_7B)
    else:
        write_demo(folder)
    first = phases(setting)[0].rates
    fleet: dict[str, Any] = {
        "name": f"closed-loop-{replan}",
        "models": [
            {
                "id": model,
                "source": f"./checkpoints/{model}",
                "slo": {"ttft_s": setting.slo.ttft_s, "tbt_s": setting.slo.tbt_s},
                "demand": {
                    "rate_per_s": round(first[model], 3),
                    "prompt_tokens": setting.prompt_tokens,
                    "output_tokens": setting.output_tokens,
                },
                "replicas": {"min": 1, "max": 4 if on_simulator else 2},
            }
            for model in setting.models
        ],
        "pools": [_pool(on_simulator)],
        "placement": {
            "solver": "search",
            "replan": replan,
            "replan_every_s": 3.0,
            "min_residency_s": 10.0,
            "max_moves_per_min": 30,
        },
        "gateway": {"port": 20321, "replicas": 2, "hold_s": 60.0},
    }
    file = folder / "fleet.yaml"
    file.write_text(json.dumps(fleet))
    return file


def _pool(on_simulator: bool) -> dict[str, Any]:
    if not on_simulator:
        # Each unit holds two of the three models (15, 25 and 37 MiB), so that one model has a second replica.
        memory = {"kv_memory": "64MiB", "device_memory": "130MiB"}
        return {"name": "cpu", "device": "cpu", "cores": 1, "nodes": {"min": 2}, **memory}
    shape = {"device": "simulated", "gpu_type": "A40", "gpus_per_node": 8}
    return {"name": "a40", **shape, "kv_memory": "8GiB"}


def run(setting: Setting, records: Sequence[TraceRecord], *, replan: str) -> tuple[list[RequestOutcome], FleetStatus]:
    vocab_sizes = dict.fromkeys(setting.models, 120)
    warm = [TraceRecord(arrival_s=0.0, input_tokens=8, output_tokens=2, model=m) for m in setting.models * 4]
    with (
        tempfile.TemporaryDirectory(prefix="closed-loop-") as folder,
        running_fleet(write_fleet(Path(folder), setting, replan=replan)) as url,
    ):
        asyncio.run(replay(warm, url=url, timeout_s=_TIMEOUT_S, vocab_sizes=vocab_sizes))
        outcomes = asyncio.run(replay(records, url=url, timeout_s=_TIMEOUT_S, vocab_sizes=vocab_sizes))
        return outcomes, fleet_report(url)


# ---- figures ----


def rows_of(setting: Setting, variant: str, outcomes: Sequence[RequestOutcome], loads: int) -> Iterator[dict[str, Any]]:
    targets = dict.fromkeys(setting.models, setting.slo)
    spans: dict[str, list[tuple[float, float]]] = {}
    for phase in phases(setting):
        spans.setdefault(phase.name, []).append((phase.start_s, phase.start_s + phase.span_s))
    for name, parts in [*spans.items(), ("all", [(0.0, float("inf"))])]:
        inside = [o for o in outcomes if any(a <= o.scheduled_s < b for a, b in parts)]
        summary = summarize(inside, targets)
        total = summary.total
        yield {
            "fleet": setting.name,
            "variant": variant,
            "phase": name,
            "requests": total.requests,
            "served_share": total.finished / max(1, total.requests),
            "slo_attainment": total.slo_attainment,
            "worst_model": min((f.slo_attainment or 0.0 for f in summary.models.values() if f.requests), default=None),
            "lost": total.lost + total.failed,
            "rejected": total.rejected,
            "ttft_p50_s": total.ttft_s.p50,
            "ttft_p99_s": total.ttft_s.p99,
            "loads": loads if name == "all" else None,
            "per_model": {m: f.slo_attainment for m, f in summary.models.items() if f.requests},
        }


def loads_of(status: FleetStatus, within_s: float) -> int:
    """Loads that the control loop ordered while the requests came."""
    moves = [m for d in status.decisions if d.seconds_ago < within_s for m in d.moves]
    return sum(m.startswith("load ") for m in moves)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "fleet",
        "phase",
        "variant",
        "requests",
        "served",
        "SLO met",
        "worst model",
        "TTFT p99",
        "lost",
        "loads",
    ):
        table.add_column(title)
    for row in rows:
        table.add_row(
            *(str(row["fleet"]), row["phase"], row["variant"], str(row["requests"]), f"{row['served_share']:.1%}"),
            *(f"{row['slo_attainment'] or 0:.1%}", f"{row['worst_model'] or 0:.1%}"),
            "-" if row["ttft_p99_s"] is None else f"{row['ttft_p99_s']:.2f} s",
            *(str(row["lost"]), "" if row["loads"] is None else str(row["loads"])),
        )
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--quick", action="store_true", help="short phases; the CPU fleet without its baseline from scratch"
    )
    parser.add_argument("--fleet", choices=["simulated", "cpu", "both"], default="both")
    parser.add_argument("--variant", choices=list(VARIANTS), action="append", help="only these")
    parser.add_argument("--append", action="store_true", help="keep the rows that FILE has of other runs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.append and options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    for setting in (simulated(is_quick=options.quick), on_cpu(is_quick=options.quick)):
        is_cpu = setting.models[0] in DEMO_SHAPES
        if options.fleet not in ("both", "cpu" if is_cpu else "simulated"):
            continue
        records = requests(setting)
        span_s = records[-1].arrival_s
        for variant, replan in VARIANTS.items():
            if variant not in (options.variant or VARIANTS) or (is_cpu and options.quick and replan == "scratch"):
                continue
            print(f"{setting.name}, {variant}: {len(records)} requests in {span_s:.0f} s", file=sys.stderr, flush=True)
            outcomes, status = run(setting, records, replan=replan)
            found = list(rows_of(setting, variant, outcomes, loads_of(status, span_s + 30.0)))
            rows = [r for r in rows if (r["fleet"], r["variant"]) != (setting.name, variant)] + found
            show(found)
            if options.json is not None:  # what is done counts, should a later one be cut off
                write_report(options.json, machine_facts(laptop_cpu(num_cores=2, memory_bytes=1)), rows)
    show(sorted(rows, key=lambda r: (r["fleet"], r["phase"])))


if __name__ == "__main__":
    main()
