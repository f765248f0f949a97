"""What a greedy tenant does to its neighbour, in virtual time: the gateway's decisions over simulated units.

    python benchmarks/fairness_virtual.py [--json FILE] [--quick]

As fairness.py, without HTTP and without a clock: the same front desk (admission, ledger, fair queue, routing) and the
product's scheduler on simulated H200s that serve Llama 3.1 8B by the roofline. A run gives the same figures anywhere.
Two tenants send Poisson arrivals to the same model. `fair`: each its share. `greedy`: one sends ten times its share.
`greedy, one key`: the same load with nothing to tell the tenants apart. Rounds differ by their arrivals. The time to
the first token is parted into `queue` (in the gateway) and `unit` (from admission on: prefills ahead and its own).
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairness import GREED, PHASES, SLO, percentile
from rich.console import Console
from rich.table import Table

from deploy.simulation.agenda import Agenda
from deploy.simulation.engine import EngineDesign, PlacedModel
from deploy.simulation.gateway import Reception, SimulatedGateway, Stay
from deploy.simulation.units import MuxedUnit, UnitIdentity, report_of
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import GenerateRequest, SamplingParams, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.devices import device_named
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec
from router.ask import Ask
from router.limits import GatewayLimits
from router.prefix_index import prefix_names
from router.routing import UnitChoice
from router.view import FleetView, ModelCard, UnitView

MODEL = "llama-8b"
NUM_UNITS = 2
VIEW_PERIOD_S = 0.5
BLOCK_BYTES = 16 * 1024
TOTAL_BLOCKS = 500_000
HOST_S = 1e-4
LIMITS = GatewayLimits(max_queued=256, hold_s=10.0)


def spec() -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128_256,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


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


@dataclass(slots=True, eq=False)
class Sent:
    tenant: str
    arrival_s: float
    stay: Stay | None = None
    admitted_s: float | None = None
    first_s: float | None = None
    refused: bool = False


class World:
    """One phase from an empty fleet to the last answer."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self.agenda = Agenda()
        self.sent: dict[str, Sent] = {}
        self.answered = 0
        self.gateway = SimulatedGateway(name="gateway", limits=LIMITS, agenda=self.agenda)
        device = device_named("H200")
        info = ModelInfo(
            model=MODEL,
            spec=spec(),
            geometry=KvGeometry.of(spec(), BLOCK_BYTES),
            eos_token_ids=frozenset(),
            max_model_len=8192,
        )
        design = EngineDesign(
            device=device,
            latency=RooflineLatency(device),
            block_bytes=BLOCK_BYTES,
            total_blocks=TOTAL_BLOCKS,
            policy="mux",
            settings=SchedulerSettings(),
            models=(PlacedModel(info=info, quota_blocks=TOTAL_BLOCKS),),
            host_s=HOST_S,
        )
        identities = [UnitIdentity(unit_id=f"u{i}", pool="p", num_gpus=1, memory_bytes=1) for i in range(NUM_UNITS)]
        self.units = {i.unit_id: MuxedUnit(i, design, self.agenda, self._on_tokens) for i in identities}
        self._draw = random.Random(seed)
        self._publish()

    def arrive(self, tenant: str, key: str, at_s: float) -> None:
        self.agenda.at(at_s, lambda: self._arrive(tenant, key, at_s))

    def run(self, until_s: float) -> None:
        while self.agenda.clock.now_s < until_s and self.agenda.step():
            pass

    def _arrive(self, tenant: str, key: str, at_s: float) -> None:
        request_id = str(len(self.sent))
        sent = self.sent[request_id] = Sent(tenant, at_s)
        start = self._draw.randrange(100_000)  # no two prompts begin alike
        prompt = tuple(range(start, start + self._load.prompt_tokens))
        request = GenerateRequest(
            request_id=request_id,
            model=MODEL,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=self._load.output_tokens, temperature=0.0),
            slo=SLO,
        )
        ask = Ask(
            request_id=request_id,
            model=MODEL,
            prompt_tokens=self._load.prompt_tokens,
            max_tokens=self._load.output_tokens,
            slo=SLO,
            deadline_s=at_s + LIMITS.hold_s,
            tenant=key,
            prefix=prefix_names(MODEL, prompt),
        )

        def admitted(choice: UnitChoice, stay: Stay) -> None:
            sent.stay = stay
            sent.admitted_s = self.agenda.clock.now_s
            self.units[choice.unit_id].submit(request)

        def refused(_: object) -> None:
            sent.refused = True

        self.gateway.offer(ask, Reception(admitted=admitted, refused=refused))

    def _on_tokens(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            sent = self.sent[event.request_id]
            assert sent.stay is not None
            if event.tokens and sent.first_s is None:
                sent.first_s = self.agenda.clock.now_s
            sent.stay.on_tokens(len(event.tokens))
            if event.finish is not None:
                self.answered += 1
                sent.stay.end(finished=True)

    def _publish(self) -> None:
        card = ModelCard(model=MODEL, source="", revision=None, slo=SLO, created_s=0)
        units = tuple(UnitView(report=report_of(unit), age_s=0.0) for unit in self.units.values())
        self.gateway.on_view(FleetView(models=(card,), units=units, stream_token=""))
        self.agenda.at(self.agenda.clock.now_s + VIEW_PERIOD_S, self._publish)


def poisson(world: World, tenant: str, key: str, rate_per_s: float, duration_s: float, seed: int) -> None:
    draw = random.Random(seed)
    at_s = 1.0
    while (at_s := at_s + draw.expovariate(rate_per_s)) < 1.0 + duration_s:
        world.arrive(tenant, key, at_s)


def capacity_per_s(load: Load) -> float:
    world = World(load, 0)
    poisson(world, "a", "a", 240_000 / load.prompt_tokens, 20.0, 0)
    world.run(6.0)
    before = world.answered
    world.run(21.0)
    return (world.answered - before) / 15.0


def phase(name: str, load: Load, share_per_s: float, duration_s: float, seed: int) -> World:
    world = World(load, seed)
    greedy_key = "neighbour" if name == "greedy, one key" else "greedy"
    poisson(world, "neighbour", "neighbour", share_per_s, duration_s, seed)
    poisson(world, "greedy", greedy_key, share_per_s * (1.0 if name == "fair" else GREED), duration_s, seed + 1)
    world.run(duration_s + 30.0)
    return world


def milliseconds(times_s: Sequence[float]) -> dict[str, float]:
    return {p: round(1e3 * percentile(times_s, q), 1) for p, q in (("p50", 0.5), ("p99", 0.99))}


def row_of(name: str, load: Load, share_per_s: float, worlds: Sequence[World], fair: Sequence[World]) -> dict[str, Any]:
    def answered_of(of: Sequence[World]) -> list[Sent]:
        sent = (s for world in of for s in world.sent.values() if s.tenant == "neighbour")
        return [s for s in sent if s.first_s is not None]

    def ttft_s(of: Sequence[World]) -> list[float]:
        return [s.first_s - s.arrival_s for s in answered_of(of) if s.first_s is not None]

    queue_s = [s.admitted_s - s.arrival_s for s in answered_of(worlds) if s.admitted_s is not None]
    unit_s = [all_s - waited_s for all_s, waited_s in zip(ttft_s(worlds), queue_s, strict=True)]

    ratios = [
        percentile(ttft_s([one]), 0.99) / percentile(ttft_s([base]), 0.99)
        for one, base in zip(worlds, fair, strict=True)
    ]
    answered = {
        tenant: [s.first_s is not None for world in worlds for s in world.sent.values() if s.tenant == tenant]
        for tenant in ("neighbour", "greedy")
    }
    return {
        "share_of_capacity": load.share,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "phase": name,
        "capacity_requests_per_s": round(share_per_s / load.share, 2),
        "neighbour_requests_per_s": round(share_per_s, 2),
        "greedy_requests_per_s": round(share_per_s * (1.0 if name == "fair" else GREED), 2),
        "neighbour_ttft_ms": milliseconds(ttft_s(worlds)),
        "neighbour_queue_ms": milliseconds(queue_s),
        "neighbour_unit_ms": milliseconds(unit_s),
        "p99_ratio_to_fair": round(percentile(ttft_s(worlds), 0.99) / percentile(ttft_s(fair), 0.99), 3),
        "p99_ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        **{f"{t}_answered": {"sent": len(done), "answered": sum(done)} for t, done in answered.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    arguments = parser.parse_args()
    duration_s, num_rounds = (15.0, 2) if arguments.quick else (30.0, 4)
    rows = []
    for load in LOADS:
        share_per_s = load.share * capacity_per_s(load)
        worlds = {n: [phase(n, load, share_per_s, duration_s, 100 * r) for r in range(num_rounds)] for n in PHASES}
        rows += [row_of(n, load, share_per_s, worlds[n], worlds["fair"]) for n in PHASES]
    table = Table(
        *("share", "tokens", "phase", "neighbour TTFT p50", "p99", "of that queue p99", "unit p99"),
        *("ratio of p99 (rounds)", "neighbour", "greedy"),
    )
    for row in rows:
        spread = row["p99_ratio_spread"]
        table.add_row(
            f"{row['share_of_capacity']:.0%}",
            f"{row['prompt_tokens']}+{row['output_tokens']}",
            row["phase"],
            *(f"{row['neighbour_ttft_ms'][p]} ms" for p in ("p50", "p99")),
            *(f"{row[k]['p99']} ms" for k in ("neighbour_queue_ms", "neighbour_unit_ms")),
            f"{row['p99_ratio_to_fair']} ({spread[0]}-{spread[1]})",
            *(f"{row[k]['answered']} of {row[k]['sent']}" for k in ("neighbour_answered", "greedy_answered")),
        )
    Console().print(table)
    if arguments.json is not None:
        document = {
            "time": "virtual",
            "engine": "Llama 3.1 8B on an H200 by the roofline",
            "units": NUM_UNITS,
            "greed": GREED,
            "rounds": num_rounds,
            "seconds_per_round": duration_s,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
