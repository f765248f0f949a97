"""A fleet of a hundred units behind a real gateway and control loop; its units only say what real ones would."""

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
from fleet_model import FakeUnit, catalog, catalog_model
from live_gateway import live_gateway

from deploy.control.control_loop import ControlLoop
from deploy.control.fleet_costs import FleetCosts
from deploy.control.flight_recorder import FlightRecorder
from deploy.control.planner import PlanAnswer, PlannerInPlace, PlanTask, work_out
from deploy.serve.console_topics import ConsoleTopics
from pdmux_actor.lease import ModelPhase, UnitReport
from pdmux_actor.messages import ModelLoad, NeighbourLoss
from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt
from placement.solvers.memory_greedy import MemoryGreedySolver
from router.access.key_figures import KeyFigures, keys_report
from router.admission.demand_report import DemandReport, ModelAsked
from router.http.live_routes import LiveSources
from router.serving.gateway import Gateway
from router.telemetry.service_report import ReceiptBook
from router.what_if import WhatIfChanges

BEAT_S = 0.5
POOLS = {"fast": 60, "small": 40}
MODELS = tuple(f"model-{i:02d}" for i in range(12))
_UNITS_OF_A_NODE = 4
_REPLICAS = 12
_KEYS = (("app", 6000), ("batch", 100_000), ("notebook", 0))


@dataclass
class BusyUnit(FakeUnit):
    """Its figures go up and down with `tick`."""

    tick: int = 0

    def report(self) -> UnitReport:
        told = super().report()
        assert told.load is not None
        loads = tuple(self._busy(m) for m in told.load.models)
        used = sum(m.used_blocks for m in loads)
        sms = 40 + self.tick % 60
        free = told.load.total_blocks - used
        load = replace(told.load, models=loads, free_blocks=free, prefill_sms=sms, decode_sms=132 - sms)
        return replace(told, load=load)

    def _busy(self, load: ModelLoad) -> ModelLoad:
        wave = 0.5 + 0.5 * math.sin(self.tick / 9 + sum(map(ord, self.unit_id + load.model)))
        others = [m for m in self.phases if m != load.model]
        return replace(
            load,
            running=round(8 * wave),
            waiting=round(3 * max(0.0, wave - 0.8)),
            used_blocks=round(load.quota_blocks * wave),
            request_attainment=1.0 - 0.3 * wave,
            output_tokens_per_s=300.0 * wave,
            ttft_lost_s=0.05 * wave if others else None,
            lost_to=tuple(NeighbourLoss(neighbour=m, ttft_s=wave, tbt_s=0.0) for m in others),
        )


def _unit_id(pool: str, number: int) -> str:
    return f"{pool}-{hashlib.sha256(f'{pool}{number}'.encode()).hexdigest()[:12]}"


def _units() -> Iterator[BusyUnit]:
    for pool, number in POOLS.items():
        for i in range(number):
            node = f"{pool}-node-{i // _UNITS_OF_A_NODE}"
            yield BusyUnit(unit_id=_unit_id(pool, i), pool=pool, node=node)


@dataclass
class SimulatedFleet:
    """Units in `silent` do not report. `is_still`: all figures stay as they are."""

    url: str = ""
    silent: set[str] = field(default_factory=set)
    is_still: bool = False

    def __post_init__(self) -> None:
        self.units = {u.unit_id: u for u in _units()}
        self._recorder = FlightRecorder()
        self._loop = ControlLoop(stream_token="t", first_version=1, started_s=time.monotonic(), recorder=self._recorder)
        wanted = catalog(*(catalog_model(m, replicas=_REPLICAS) for m in MODELS))
        costs = FleetCosts()
        planner = PlannerInPlace(MemoryGreedySolver(), costs.estimator)
        self._loop.set_catalog(wanted, expected_units=POOLS, planner=planner, costs=costs)
        self._costs = costs
        self._topics = ConsoleTopics(self._loop, self._plan)
        self._receipts = ReceiptBook()
        self._tick = 0

    async def follow(self, gateway: Gateway) -> None:
        """The gateway's feed: here all runs on its loop."""
        while True:
            self.beat()
            if (view := self._loop.fleet_view(time.monotonic())) is not None:
                gateway.view.update(view, gateway.clock())  # without connections to units that are not there
            await asyncio.sleep(BEAT_S)

    def beat(self) -> None:
        self._tick += not self.is_still
        now_s = time.monotonic()
        asked = tuple(
            ModelAsked(
                model=m, requests_total=3 * self._tick, prompt_tokens_total=300 * self._tick, output_tokens_total=9
            )
            for m in MODELS
        )
        self._loop.hear_demand(DemandReport(gateway_id="g", models=asked), now_s)
        for unit in self.units.values():
            if unit.unit_id in self.silent:
                continue
            unit.tick = self._tick
            lease = self._loop.heartbeat(unit.report(), now_s)
            unit.progress()
            unit.obey(lease)
        if not self.is_still:
            state = {"request_id": f"r{self._tick}", "model": MODELS[self._tick % len(MODELS)]}
            self._receipts.note(state, endpoint="/v1/chat/completions", status=200, elapsed_s=1 + self._tick % 7)

    def serves_all(self) -> bool:
        """Every model is ready somewhere, and nothing loads."""
        phases = [p for u in self.units.values() for p in u.phases.values()]
        return len(phases) == _REPLICAS * len(MODELS) and set(phases) == {ModelPhase.READY}

    async def read_topic(self, topic: str, about: Mapping[str, str]) -> bytes:
        match topic:
            case "unit":
                return msgspec.json.encode(self._log(self.units[about["unit"]]))
            case "requests":
                return msgspec.json.encode(self._receipts.told())
            case "keys":
                return msgspec.json.encode(keys_report(_key(name, tokens) for name, tokens in _KEYS))
        return self._topics.told(topic, about)

    async def what_if(self, changes: WhatIfChanges) -> bytes | None:
        return await self._topics.what_if(changes)

    async def _plan(self, task: PlanTask) -> PlanAnswer:
        return await asyncio.to_thread(work_out, task, MemoryGreedySolver(), self._costs.estimator)

    def _log(self, unit: BusyUnit) -> LogExcerpt:
        now_s = float(self._tick)
        models = sorted(unit.phases)
        decisions = tuple(
            Decision(
                index=i,
                now_s=now_s - 2 + i / 20,
                kind=DecisionKind.PREFILL if i % 4 == 0 else DecisionKind.DECODE,
                prefill_sms=52,
                decode_sms=80,
                model=models[i % len(models)],
                chunks=((0, 128),) if i % 4 == 0 else (),
                num_decoding=0 if i % 4 == 0 else 8,
                predicted_s=0.04,
                started_s=now_s - 2 + i / 20,
                finished_s=now_s - 2 + i / 20 + 0.045,
            )
            for i in range(40 if models else 0)
        )
        return LogExcerpt(now_s=now_s, unix_s=1e9 + now_s, decisions=decisions)


def _key(name: str, tokens: int) -> KeyFigures:
    return KeyFigures(
        key_id=name,
        name=name,
        is_admin=False,
        models=None,
        limit_requests=60,
        limit_tokens=None,
        remaining_requests=20,
        requests=tokens // 100,
        tokens=tokens,
        recent_tokens=tokens,
    )


@contextlib.contextmanager
def simulated_fleet() -> Iterator[SimulatedFleet]:
    """Yields it once all its models are ready."""
    fleet = SimulatedFleet()
    sources = LiveSources(read_topic=fleet.read_topic, what_if=fleet.what_if)
    with live_gateway(sources, feed=fleet.follow, has_console=True) as url:
        fleet.url = url
        until_s = time.monotonic() + 120
        while not fleet.serves_all():
            assert time.monotonic() < until_s, "the simulated fleet does not come up"
            time.sleep(0.1)
        yield fleet
