"""Clients of a small fleet in virtual time that holds fewer models than they ask for."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_model import BLOCK_BYTES, HEARTBEAT_S, SPEC, TOTAL_BLOCKS, World, catalog, catalog_model

from deploy.control.control_rules import ControlRules
from deploy.fleet_file.model_catalog import CatalogModel
from placement.estimation.memory import resident_bytes
from placement.problem import Solver
from router.limits import GatewayLimits

HOLD_S = 30.0
LIMITS = GatewayLimits(hold_s=HOLD_S)


@dataclass
class Stream:
    """A request: what is left of its answer, and since when no unit works on it."""

    model: str
    left_s: float
    waits_since_s: float
    patience_s: float = HOLD_S
    waited_s: float = 0.0
    unit_id: str | None = None


@dataclass
class Crowd:
    """Clients of a fleet: a request is held until its model is ready, and again when that leaves before its end."""

    world: World
    runs_s: float = 1.0
    streams: list[Stream] = field(default_factory=list)
    waits_s: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def ask(self, model: str) -> None:
        self.world.ask(model)
        self.streams.append(Stream(model, self.runs_s, self.world.now_s))

    def decided(self) -> list[str]:
        return self.world.decided("plan")

    def beat(self) -> None:
        now_s = self.world.now_s
        for stream in tuple(self.streams):
            self._go_on(stream, now_s)
        running = Counter((s.unit_id, s.model) for s in self.streams)
        self.world.held = dict(Counter(s.model for s in self.streams if s.unit_id is None))
        for unit in self.world.units.values():
            unit.running = {m: running[unit.unit_id, m] for m in unit.phases}
        self.world.beat()

    def _go_on(self, stream: Stream, now_s: float) -> None:
        homes = self.world.serving(stream.model)
        unit = self.world.units.get(stream.unit_id or "")
        if stream.unit_id is not None and (unit is None or stream.model not in unit.phases):
            stream.unit_id, stream.waits_since_s = None, now_s
        elif stream.unit_id is not None:
            stream.left_s -= HEARTBEAT_S
            stream.patience_s = LIMITS.begun_hold_s
        if stream.unit_id is None and homes:
            stream.unit_id, stream.waited_s = homes[0], max(stream.waited_s, now_s - stream.waits_since_s)
        if stream.left_s <= 0:
            self.waits_s.setdefault(stream.model, []).append(stream.waited_s)
            self.streams.remove(stream)
        elif stream.unit_id is None and now_s - stream.waits_since_s > stream.patience_s:
            self.refused[stream.model] = self.refused.get(stream.model, 0) + 1
            self.streams.remove(stream)

    def come(self, per_s: Mapping[str, float], *, for_s: float, seed: int = 0) -> None:
        """Requests of each model, at random."""
        drawn = random.Random(seed)
        for _ in range(int(for_s / HEARTBEAT_S)):
            for model, rate in per_s.items():
                if drawn.random() < rate * HEARTBEAT_S:
                    self.ask(model)
            self.beat()


def crowded(
    *models: str | CatalogModel,
    solver: Solver,
    units: int = 1,
    room: int = 1,
    runs_s: float = 1.0,
    blocks: int = TOTAL_BLOCKS,
    load_s: float | None = None,
) -> Crowd:
    """Units with room for so many models of the usual size each; those that go by their names may be scaled to zero.
    With `load_s` nothing sleeps in host memory.
    """
    asked = [catalog_model(m, sleeps_after_s=300.0) if isinstance(m, str) else m for m in models]
    world = World(catalog(*asked), expected_units=units, solver=solver, rules=ControlRules(hold_s=HOLD_S))
    for _ in range(units):
        memory_bytes = blocks * BLOCK_BYTES + room * resident_bytes(SPEC)
        unit = world.start_unit(memory_bytes=memory_bytes, total_blocks=blocks)
        if load_s is None:
            unit.host_memory_bytes = 8 * SPEC.weight_bytes
        else:
            unit.load_s = load_s
    world.beat(4)
    return Crowd(world, runs_s)
