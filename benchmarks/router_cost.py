"""What a gateway's decisions cost per request: admission, ledger, fair queue, routing. No I/O, no HTTP.

    python benchmarks/router_cost.py [--json FILE] [--quick]

Fleets of 10, 100 and 1,000 units that all serve the same three models. `decide` is from the offered request to the
chosen unit, with its blocks reserved; `life` goes on to the first token, 20 more outputs and the end. Half of the
requests share a 1,000-token prefix with an earlier one. Reported is this process's CPU time per request: median and
10th to 90th percentile over blocks of requests. The fleets take turns, block by block. `view` is the cost of one new
view of the fleet, which comes twice a second; memory is what view, table and own load take, by replica.
"""

import statistics
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad, Slo
from router.admission.admission import Admit
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest
from router.routing.prefix_index import prefix_names
from router.view import FleetView, ModelCard, UnitView

REPLICAS = (10, 100, 1000)
MODELS = ("model-a", "model-b", "model-c")  # every unit serves all three
PROMPT_TOKENS = 1000
OUTPUTS = 20
BLOCK_REQUESTS = 100
AT_ONCE = 10
SLO = Slo(ttft_s=2.0, tbt_s=0.1)


def unit_of(index: int, models: Sequence[str], *, waiting_tokens: int) -> UnitView:
    loads = tuple(
        ModelLoad(
            model=name,
            running=(index * 7) % 13,
            waiting=index % 2,
            used_blocks=200,
            quota_blocks=200_000,
            preemptions_total=0,
            prompt_tokens_total=0,
            output_tokens_total=0,
            waiting_tokens=waiting_tokens,
            blocks_per_row=64,
            tokens_per_row=16,
            prefill_base_s=0.004,
            prefill_s_per_token=2e-5,
        )
        for name in models
    )
    report = UnitReport(
        unit_id=f"unit-{index}",
        node=f"node-{index // 8}",
        pool="gpus",
        num_gpus=1,
        endpoint=f"10.0.{index // 256}.{index % 256}:7000",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=600_000,
        lease_version=1,
        models=tuple(ModelStatus(model=n, phase=ModelPhase.READY, max_model_len=32_768) for n in models),
        load=LoadReport(
            models=loads, total_blocks=600_000, free_blocks=1, prefill_sms=66, decode_sms=66, steps_total=1
        ),
    )
    return UnitView(report=report, age_s=0.2)


def fleet_of(units: Sequence[UnitView], models: Sequence[str]) -> FleetView:
    cards = tuple(ModelCard(model=m, source="s", revision=None, slo=SLO, created_s=0) for m in models)
    return FleetView(models=cards, units=tuple(units), stream_token="t")


def fleet(num_replicas: int) -> FleetView:
    units = [unit_of(i, MODELS, waiting_tokens=(i * 131) % 900) for i in range(num_replicas)]
    return fleet_of(units, MODELS)


@dataclass(slots=True)
class Bench:
    """One fleet's gateway scheduler. Time is told, so that the view stays fresh."""

    num_replicas: int
    scheduler: GatewayScheduler
    view: FleetView
    count: int = 0
    now_s: float = 0.0

    @classmethod
    def of(cls, num_replicas: int) -> "Bench":
        return cls(num_replicas, GatewayScheduler(gateway_id="g"), fleet(num_replicas))

    def asks(self, number: int) -> list[AdmissionRequest]:
        made = []
        for _ in range(number):
            self.count += 1
            start = self.count if self.count % 2 else self.count % 50
            prompt = tuple(range(start, start + PROMPT_TOKENS))
            model = MODELS[self.count % len(MODELS)]
            made.append(
                AdmissionRequest(
                    request_id=f"request-{self.count}",
                    model=model,
                    prompt_tokens=PROMPT_TOKENS,
                    max_tokens=256,
                    slo=SLO,
                    deadline_s=1e12,
                    tenant=f"tenant-{self.count % 5}",
                    prefix=prefix_names(model, prompt),
                )
            )
        return made

    def view_s(self) -> float:
        self.now_s += 0.5
        began = time.process_time()
        self.scheduler.update_view(self.view, self.now_s)
        self.scheduler.pump(self.now_s)
        return time.process_time() - began

    def block(self) -> tuple[float, float]:
        """Seconds per request: deciding, and its whole life. No more at once than the smallest fleet has units: it has
        room for them, and none waits at the gateway.
        """
        decide_s = life_s = 0.0
        for _ in range(BLOCK_REQUESTS // AT_ONCE):
            asks = self.asks(AT_ONCE)
            admitted = 0
            began = time.process_time()
            for ask in asks:
                self.now_s += 1e-4
                admitted += isinstance(self.scheduler.offer(ask, self.now_s), Admit)
            decided = time.process_time()
            for ask in asks:
                for _ in range(OUTPUTS + 1):
                    self.scheduler.produced(ask.request_id, 1, self.now_s)
                self.scheduler.end(ask.request_id, self.now_s, finished=True, ttft_met=True, tbt_met=True)
                self.scheduler.pump(self.now_s)
            life_s += time.process_time() - began
            decide_s += decided - began
            assert admitted == AT_ONCE, "the fleet of the benchmark has room for everybody"
        return decide_s / BLOCK_REQUESTS, life_s / BLOCK_REQUESTS


def memory_bytes(num_replicas: int) -> float:
    tracemalloc.start()
    bench = Bench.of(num_replicas)
    bench.view_s()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / num_replicas


def prefix_s(rounds: int) -> list[float]:
    prompts = [tuple(range(i, i + PROMPT_TOKENS)) for i in range(rounds)]
    seconds = []
    for prompt in prompts:
        began = time.process_time()
        for _ in range(20):
            prefix_names("m", prompt)
        seconds.append((time.process_time() - began) / 20)
    return seconds


def figures(seconds: Sequence[float], unit_s: float) -> dict[str, float]:
    deciles = statistics.quantiles([s / unit_s for s in seconds], n=10)
    return {
        "median": round(statistics.median(seconds) / unit_s, 2),
        "p10": round(deciles[0], 2),
        "p90": round(deciles[-1], 2),
    }


def measure(rounds: int) -> list[dict[str, Any]]:
    benches = [Bench.of(n) for n in REPLICAS]
    views: dict[int, list[float]] = {n: [] for n in REPLICAS}
    blocks: dict[int, list[tuple[float, float]]] = {n: [] for n in REPLICAS}
    for _ in range(rounds):
        for bench in benches:
            views[bench.num_replicas].append(bench.view_s())
            blocks[bench.num_replicas].append(bench.block())
    return [
        {
            "replicas": n,
            "decide_us": figures([decide for decide, _ in blocks[n]], 1e-6),
            "life_us": figures([life for _, life in blocks[n]], 1e-6),
            "view_ms": figures(views[n], 1e-3),
            "memory_bytes_per_replica": round(memory_bytes(n)),
        }
        for n in REPLICAS
    ]


COLUMNS: Mapping[str, str] = {
    "replicas": "{replicas}",
    "decide us (p10-p90)": "{decide_us[median]} ({decide_us[p10]}-{decide_us[p90]})",
    "life us (p10-p90)": "{life_us[median]} ({life_us[p10]}-{life_us[p90]})",
    "new view ms": "{view_ms[median]} ({view_ms[p10]}-{view_ms[p90]})",
    "memory/replica": "{memory_bytes_per_replica} B",
}


def main() -> None:
    arguments = make_parser(__doc__, quick="a tenth of the rounds").parse_args()
    rounds = 20 if arguments.quick else 200
    measure(3)  # warms caches of the interpreter and of numpy
    rows = measure(rounds)
    hashing = figures(prefix_s(rounds), 1e-6)
    print_table(rows, COLUMNS)
    print(f"naming the prefixes of {PROMPT_TOKENS} tokens: {hashing['median']} us more per request")
    setting = {"prompt_tokens": PROMPT_TOKENS, "outputs_per_request": OUTPUTS + 1, "prefix_names_us": hashing}
    write_report(arguments.json, machine_facts(), rows, **setting)


if __name__ == "__main__":
    main()
