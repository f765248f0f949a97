"""What it is worth that the fleet follows demand: a static plan, a plan from scratch each time, and the closed loop.

Every variant runs the same requests on a fleet of its own: twelve models on eight simulated A40s, and the three demo
models on two CPU units. Three things happen one after the other: popularity flips (the least asked for become the most
asked for), one model bursts to thirteen times its rate, and demand shifts over in the shape of a day between two halves
of the models. Attainment counts every request of a phase, lost ones as missed.

`--clock real` is a real fleet (Ray, gateways, HTTP) in real time, `--clock virtual` the simulator of the fleet with the
same router, ledger and control loop; both run the same requests, and the last table tells how far they are apart.

`--fleet slow`, in virtual time: one of the eight takes 30 % longer than its table says, at demand that stays as
planned; with plans that learn from what units measure, and without. `--fleet slow-home`: the same where each model has
one home, so that routing cannot send it less. `--fleet kv`, in virtual time: KV pools that
somebody guessed too small or too large, beside those that the plan sizes. `--fleet starved`, in virtual time: one of a
hundred models comes to be asked for more than its homes can do, and for so much that all spare units do not serve it.

The oracle, in virtual time: every phase starts with the plan for it in place.

    python benchmarks/closed_loop.py --quick --json out.json
"""

import asyncio
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleets.closed_loop_scenario import (
    HOLD_S,
    Phase,
    Setting,
    Variant,
    on_cpu,
    phases,
    requests,
    simulated,
    with_slow_home,
    with_slow_unit,
    with_starved_model,
    write_fleet,
)
from fleets.running_fleet import running_fleet
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.control.decision_history import PlacementDecision
from deploy.fleet_file.settings import read_fleet_file
from deploy.inspection.fleet_report import fleet_report
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome
from traces.record import TraceRecord
from traces.replay import replay
from traces.report import summarize

VARIANTS: Mapping[str, Variant] = {
    "static": Variant(replan="off"),
    "from scratch": Variant(replan="scratch"),
    "closed loop": Variant(replan="auto"),
}
# No CPU fleet and no real one: it would have to be started anew for every phase.
ORACLE: Mapping[str, Variant] = {"oracle": Variant(replan="off", knows_future=True)}
GUESSES: Mapping[str, Variant] = {
    "guessed 1 GiB": Variant(replan="auto", kv_memory="1GiB"),
    "guessed 26 GiB": Variant(replan="auto", kv_memory="26GiB"),
    "auto": Variant(replan="auto", kv_memory="auto"),
}
FOLLOWING: Mapping[str, Variant] = {name: VARIANTS[name] for name in ("static", "closed loop")}
LEARNING: Mapping[str, Variant] = {
    "not learning": Variant(replan="auto", learn=False),
    "learning": Variant(replan="auto"),
}
# A simulated device reads no weights: this is what messages and tokenizers take.
_LOADS = LoadTimes(bytes_per_s=1e15, fixed_s=0.3)
_BOTH_CLOCKS = ("both", "simulated", "cpu")  # fleets that run in real time, too
_TIMEOUT_S = 90.0
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`decisions`: the oldest first, with the time since the first request."""

    outcomes: Sequence[RequestOutcome]
    decisions: Sequence[tuple[float, PlacementDecision]]

    def moves(self, verb: str) -> int:
        return sum(move.startswith(f"{verb} ") for _, decision in self.decisions for move in decision.moves)


def run_real(setting: Setting, records: Sequence[TraceRecord], variant: Variant) -> Run:
    vocab_sizes = dict.fromkeys(setting.models, 120)
    warm = [TraceRecord(arrival_s=0.0, input_tokens=8, output_tokens=2, model=m) for m in setting.models * 2]
    with (
        tempfile.TemporaryDirectory(prefix="closed-loop-") as folder,
        running_fleet(write_fleet(Path(folder), setting, variant)) as running,
    ):
        url = running.url
        asyncio.run(replay(warm, url=url, timeout_s=_TIMEOUT_S, vocab_sizes=vocab_sizes))
        time.sleep(_SETTLE_S)
        began_s = time.monotonic()
        outcomes = asyncio.run(replay(records, url=url, timeout_s=_TIMEOUT_S, vocab_sizes=vocab_sizes))
        decisions = fleet_report(url).decisions
        ended_s = time.monotonic() - began_s
    known = [(ended_s - d.seconds_ago, d) for d in reversed(decisions)]
    return Run(outcomes=outcomes, decisions=[(at_s, d) for at_s, d in known if at_s >= 0])


def run_virtual(setting: Setting, records: Sequence[TraceRecord], variant: Variant) -> Run:
    """An oracle's phases are runs of their own: none has to bear what the one before left."""
    if not variant.knows_future:
        return _virtual(setting, records, variant, None)
    outcomes: list[RequestOutcome] = []
    for phase in phases(setting):
        inside = [r for r in records if phase.start_s <= r.arrival_s < phase.start_s + phase.span_s]
        shifted = [replace(r, arrival_s=r.arrival_s - phase.start_s) for r in inside]
        run = _virtual(setting, shifted, variant, phase)
        outcomes += [replace(o, scheduled_s=o.scheduled_s + phase.start_s) for o in run.outcomes]
    return Run(outcomes=outcomes, decisions=())


def _virtual(setting: Setting, records: Sequence[TraceRecord], variant: Variant, phase: Phase | None) -> Run:
    outcomes: list[RequestOutcome] = []
    with tempfile.TemporaryDirectory(prefix="closed-loop-") as folder:
        fleet = read_fleet_file(write_fleet(Path(folder), setting, variant, phase))
        deployment = Deployment(name="mux", policy=fleet.engine.policy, slowdowns=setting.slowdowns)
        loads = _LOADS if setting.hot_per_s is None and not setting.slowdowns else LoadTimes()
        deployed = deploy_fleet(fleet, deployment, loads=loads)
    stream = RequestStream(
        name=setting.name,
        records=lambda: iter(records),
        block_tokens=None,
        count=len(records),
        span_s=records[-1].arrival_s,
    )
    options = RunOptions(limits=GatewayLimits(hold_s=HOLD_S), gateways=2)
    outcome = run_fleet(deployed, stream, options, on_outcome=outcomes.append)
    return Run(outcomes=outcomes, decisions=[(outcome.decided_s(d), d) for d in reversed(outcome.decisions)])


CLOCKS = {"real": run_real, "virtual": run_virtual}


# ---- figures ----


def rows_of(setting: Setting, clock: str, variant: str, run: Run) -> Iterator[dict[str, Any]]:
    targets = dict.fromkeys(setting.models, setting.slo)
    spans: dict[str, list[tuple[float, float]]] = {}
    for phase in phases(setting):
        spans.setdefault(phase.name, []).append((phase.start_s, phase.start_s + phase.span_s))
    for name, parts in [*spans.items(), ("all", [(0.0, float("inf"))])]:
        inside = [o for o in run.outcomes if any(a <= o.scheduled_s < b for a, b in parts)]
        summary = summarize(inside, targets)
        total = summary.total
        row = {
            "fleet": setting.name,
            "clock": clock,
            "variant": variant,
            "phase": name,
            "requests": total.requests,
            "served_share": total.finished / max(1, total.requests),
            "slo_attainment": total.slo_attainment,
            "request_attainment": total.request_attainment,
            "worst_model": min((f.slo_attainment or 0.0 for f in summary.models.values() if f.requests), default=None),
            "worst_model_request_attainment": min(
                (f.request_attainment or 0.0 for f in summary.models.values() if f.requests), default=None
            ),
            "lost": total.lost + total.failed,
            "rejected": total.rejected,
            "ttft_p50_s": total.ttft_s.p50,
            "ttft_p99_s": total.ttft_s.p99,
            "tbt_p99_s": total.tbt_s.p99,
            "per_model": {m: f.slo_attainment for m, f in summary.models.items() if f.requests},
        }
        if name == "all":
            row |= {
                "phase_s": setting.phase_s,
                "requests_per_s": setting.rate_per_s,
                "loads": run.moves("load"),
                "drains": run.moves("drain"),
                "send_lag_p99_s": total.send_lag_s.p99,
                "errors": dict(Counter(o.error for o in run.outcomes if o.error is not None).most_common(10)),
                "decisions": [
                    {"time_s": round(at_s, 1), "kind": d.kind, "reason": d.reason, "moves": list(d.moves)}
                    for at_s, d in run.decisions
                ],
            }
        yield row


COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("fleet", "clock", "phase", "variant", "requests")},
    "served": "{served_share:.1%}",
    "in time": "{request_attainment:.1%}",
    "99 % of gaps": "{slo_attainment:.1%}",
    "worst model": "{worst_model:.1%}",
    "its in time": "{worst_model_request_attainment:.1%}",
    "TTFT p99": "{ttft_p99_s:.2f} s",
    "lost": "{lost}",
    "loads": "{loads}",
}
ERROR_COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("fleet", "phase", "variant")},
    **{name: f"{{{name}:+.1f}}" for name in ("served", "SLO met")},
    "TTFT p99": "{ttft_s:+.2f} s",
    "loads": "{loads} and {real_loads}",
}


def errors_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of the simulator, in percentage points where both clocks have the same run."""
    found = {(r["fleet"], r["phase"], r["variant"], r["clock"]): r for r in rows}
    for (fleet, phase, variant, clock), virtual in found.items():
        real = found.get((fleet, phase, variant, "real"))
        if clock == "virtual" and real is not None and real["requests"] == virtual["requests"]:
            points = [100 * ((virtual[k] or 0) - (real[k] or 0)) for k in ("served_share", "slo_attainment")]
            yield {
                "fleet": fleet,
                "phase": phase,
                "variant": variant,
                "served": points[0],
                "SLO met": points[1],
                "ttft_s": (virtual["ttft_p99_s"] or 0) - (real["ttft_p99_s"] or 0),
                "loads": virtual.get("loads"),
                "real_loads": real.get("loads"),
            }


def _settings(options: Namespace) -> Sequence[Setting]:
    """With each seed; the usual one is not named."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    return [_seeded(fleet, seed) for seed in seeds for fleet in _fleets(options)]


def _seeded(fleet: Setting, seed: int) -> Setting:
    return fleet if seed == fleet.seed else replace(fleet, name=f"{fleet.name}, seed {seed}", seed=seed)


def _fleets(options: Namespace) -> Sequence[Setting]:
    on_a40 = simulated(phase_s=options.phase or (20.0 if options.quick else 90.0))
    if options.fleet == "kv":
        return (replace(on_a40, name="8 simulated A40, KV pools"),)
    if options.fleet == "slow":
        phase_s = options.phase or (40.0 if options.quick else 80.0)
        return [with_slow_unit(phase_s=phase_s, rate_per_s=rate) for rate in (12.0, 14.0)]
    if options.fleet == "slow-home":
        phase_s = options.phase or (40.0 if options.quick else 120.0)
        return [with_slow_home(phase_s=phase_s, rate_per_s=rate) for rate in (10.0, 12.0)]
    if options.fleet == "starved":
        phase_s = options.phase or (10.0 if options.quick else 30.0)
        return [with_starved_model(phase_s=phase_s, hot_per_s=rate) for rate in (20.0, 40.0)]
    cores = on_cpu(phase_s=options.phase or (12.0 if options.quick else 60.0))
    return [s for s in (on_a40, cores) if options.fleet in ("both", "cpu" if s.is_on_cpu else "simulated")]


def _variants(options: Namespace) -> Mapping[str, Variant]:
    if options.fleet in ("slow", "slow-home"):
        return LEARNING
    if options.fleet == "kv":
        return GUESSES
    if options.fleet == "starved":
        return FOLLOWING
    known = {**VARIANTS, **ORACLE}
    return {v: known[v] for v in options.variant or known}


def main() -> None:
    parser = make_parser(__doc__, quick="short phases")
    parser.add_argument(
        "--fleet",
        choices=["simulated", "cpu", "both", "slow", "slow-home", "kv", "starved"],
        default="both",
        help="both: simulated and cpu",
    )
    parser.add_argument(
        "--clock", choices=[*CLOCKS, "both"], default="both", help="the CPU fleet has the real one only"
    )
    parser.add_argument("--variant", choices=[*VARIANTS, *ORACLE], action="append", help="only these")
    parser.add_argument("--phase", type=float, metavar="S", help="seconds of the longest phase; 3.75 of them are a run")
    parser.add_argument("--seeds", default="7", metavar="N,...", help="of the requests")
    parser.add_argument("--append", action="store_true", help="keep the rows that FILE has of other runs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.append and options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    for setting in _settings(options):
        records = requests(setting)
        clock_asked = options.clock if options.fleet in _BOTH_CLOCKS else "virtual"
        clocks = [c for c in CLOCKS if clock_asked in (c, "both") and not (setting.is_on_cpu and c == "virtual")]
        variants = _variants(options)
        for clock, variant in ((c, v) for c in clocks for v in variants):
            if clock != "virtual" and variant in ORACLE:
                continue
            span_s = records[-1].arrival_s
            print(f"{setting.name}, {clock}, {variant}: {len(records)} requests in {span_s:.0f} s", file=sys.stderr)
            found = list(rows_of(setting, clock, variant, CLOCKS[clock](setting, records, variants[variant])))
            key = (setting.name, clock, variant)
            rows = [r for r in rows if (r["fleet"], r["clock"], r["variant"]) != key] + found
            print_table(found, COLUMNS, width=170)
            write_report(options.json, machine_facts(), rows)  # what is done counts, should a later one be cut off
    order = list(CLOCKS)
    print_table(sorted(rows, key=lambda r: (r["fleet"], r["phase"], order.index(r["clock"]))), COLUMNS, width=170)
    if errors := list(errors_of(rows)):
        print_table(errors, ERROR_COLUMNS, title="virtual minus real", width=170)


if __name__ == "__main__":
    main()
