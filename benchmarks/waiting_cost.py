"""What it costs a gateway that requests of many models wait: to let another one in, to give away what came free.

    python benchmarks/waiting_cost.py [--json FILE] [--quick]

20 requests of each of 10 or 100 models wait for prefills of 0.6 s; every model has a unit of its own (apart), or
each unit has the next one's model, too, so that in the end all compete (together). `offer` is a request of one more
model, whose unit is idle, from the question to the time of the next look; `first token` and `end` are those of a
request that runs, with what is given away then; `view` is a new view of the fleet. CPU time of this process: median and
10th to 90th percentile.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts
from router_cost import SLO, figures, fleet_of, unit_of

from router.admission.admission import Admit
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest

MODELS = (10, 100)
WAITING = 20
PROMPT_TOKENS = 30_000  # 0.6 s, as units of router_cost tell: more than may go before another one
IDLE = "idle"


def ask(request_id: str, model: str, prompt_tokens: int) -> AdmissionRequest:
    return AdmissionRequest(
        request_id=request_id, model=model, prompt_tokens=prompt_tokens, max_tokens=64, slo=SLO, deadline_s=1e9
    )


class Bench:
    """A gateway at which requests of `models` models wait."""

    def __init__(self, models: int, *, together: bool) -> None:
        names = [f"model-{i}" for i in range(models)]
        of_units = [(name, names[(i + 1) % models]) if together else (name,) for i, name in enumerate(names)]
        units = [unit_of(i, of_unit, waiting_tokens=0) for i, of_unit in enumerate((*of_units, (IDLE,)))]
        self.view = fleet_of(units, (*names, IDLE))
        self.scheduler = GatewayScheduler(gateway_id="g")
        self.scheduler.update_view(self.view, 0.0)
        self.running: list[AdmissionRequest] = []
        self.now_s = 0.0
        self.count = 0
        for i in range(WAITING):
            for name in names:
                request = ask(f"{name}/{i}", name, PROMPT_TOKENS)
                if isinstance(self.scheduler.offer(request, 0.0), Admit):
                    self.running.append(request)
        self.running += [r for r, outcome in self.scheduler.pump(0.0) if isinstance(outcome, Admit)]
        assert len(self.scheduler.admission.waiting()) > models * (WAITING - 3)

    def offer_s(self) -> float:
        self.count += 1
        self.now_s += 1e-4
        request = ask(f"{IDLE}/{self.count}", IDLE, 10)

        def offer() -> None:
            assert isinstance(self.scheduler.offer(request, self.now_s), Admit)
            self.scheduler.next_pump_s(IDLE)

        seconds = cpu_s(offer)
        self.scheduler.produced(request.request_id, 1, self.now_s)
        self.scheduler.end(request.request_id, self.now_s, finished=True)
        return seconds

    def first_token_and_end_s(self) -> tuple[float, float]:
        self.now_s += 1e-3
        request = self.running.pop(0)

        def give_away() -> None:
            admitted = [
                r for r, outcome in self.scheduler.pump(self.now_s, request.model) if isinstance(outcome, Admit)
            ]
            self.running += admitted
            self.scheduler.next_pump_s(request.model)

        def first_token() -> None:
            assert self.scheduler.produced(request.request_id, 1, self.now_s)
            give_away()

        def end() -> None:
            self.scheduler.end(request.request_id, self.now_s, finished=True)
            give_away()

        return cpu_s(first_token), cpu_s(end)

    def view_s(self) -> float:
        self.now_s += 0.5

        def see() -> None:
            self.scheduler.update_view(self.view, self.now_s)
            self.running += [r for r, outcome in self.scheduler.pump(self.now_s) if isinstance(outcome, Admit)]

        return cpu_s(see)


def cpu_s(action: Callable[[], None]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def measure(models: int, together: bool, rounds: int) -> dict[str, Any]:
    offers, ends, views = [], [], []
    for _ in range(rounds):
        bench = Bench(models, together=together)
        offers += [bench.offer_s() for _ in range(30)]
        ends += [bench.first_token_and_end_s() for _ in range(min(models, 30))]
        views += [bench.view_s() for _ in range(3)]
    return {
        "models": models,
        "units": "together" if together else "apart",
        "offer_us": figures(offers, 1e-6),
        "first_token_us": figures([first_s for first_s, _ in ends], 1e-6),
        "end_us": figures([end_s for _, end_s in ends], 1e-6),
        "view_ms": figures(views, 1e-3),
    }


COLUMNS: Mapping[str, str] = {
    "models": "{models}",
    "units": "{units}",
    "offer us (p10-p90)": "{offer_us[median]} ({offer_us[p10]}-{offer_us[p90]})",
    "first token us": "{first_token_us[median]} ({first_token_us[p10]}-{first_token_us[p90]})",
    "end us": "{end_us[median]} ({end_us[p10]}-{end_us[p90]})",
    "view ms": "{view_ms[median]} ({view_ms[p10]}-{view_ms[p90]})",
}


def main() -> None:
    arguments = make_parser(__doc__, quick="a fifth of the rounds").parse_args()
    rounds = 2 if arguments.quick else 10
    measure(10, True, 1)  # warms caches of the interpreter and of numpy
    rows = [measure(models, together, rounds) for models in MODELS for together in (False, True)]
    print_table(rows, COLUMNS)
    write_report(arguments.json, machine_facts(), rows, waiting_of_each=WAITING)


if __name__ == "__main__":
    main()
