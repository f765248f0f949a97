"""The product's control loop and a real unit on the CPU engine, without Ray between them: scale to zero and back."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from deploy.control.control_loop import ControlLoop
from deploy.control.planner import PlannerInPlace
from deploy.fleet_file.model_catalog import Catalog, CatalogModel
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.model_specs import read_model_spec
from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import ModelPhase
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.unit import Unit
from placement.estimation.problem_arrays import Estimator
from placement.solvers.search import SearchSolver
from router.admission.demand_report import DemandReport, ModelAsked

DEADLINE_S = 120.0


def catalog_of(checkpoints: Mapping[str, Path]) -> Catalog:
    def model(name: str, folder: Path) -> CatalogModel:
        replicas = {"min": 0, "max": 1, "idle_after_s": 5.0}
        settings = ModelSection.model_validate({"id": name, "source": str(folder), "replicas": replicas})
        spec = read_model_spec(name, str(folder), None, None)
        return CatalogModel(settings=settings, dtype=None, created_s=0, spec=spec)

    return Catalog(models=tuple(model(*item) for item in checkpoints.items()), policy="mux")


class Fleet:
    """One unit, a heartbeat every half second of a time that the test tells."""

    def __init__(self, unit: Unit, loop: ControlLoop) -> None:
        self.unit, self.loop = unit, loop
        self.now_s = 0.0
        self.asked: dict[str, int] = {}

    async def until(self, phases: dict[str, ModelPhase], *, waiting: int = 0) -> None:
        """Time goes fast, so a request is `waiting` for a model that must not fall asleep before it is there."""
        async with asyncio.timeout(DEADLINE_S):
            while await self._beat(waiting) != phases:  # noqa: ASYNC110 - heartbeats, as a unit sends them
                await asyncio.sleep(0.02)

    async def _beat(self, waiting: int) -> dict[str, ModelPhase]:
        """What the control loop was told."""
        self.now_s += 0.5
        counted = tuple(
            ModelAsked(model=m, requests_total=n, prompt_tokens_total=n, output_tokens_total=n, waiting=waiting)
            for m, n in self.asked.items()
        )
        self.loop.hear_demand(DemandReport(gateway_id="g", models=counted), self.now_s)
        report = self.unit.report()
        self.unit.apply_lease(self.loop.heartbeat(report, self.now_s))
        return {s.model: s.phase for s in report.models}


async def test_control_loop__real_unit__model_sleeps_in_host_memory_and_a_request_wakes_it(
    demo_checkpoints: Mapping[str, Path],
) -> None:
    name = next(iter(demo_checkpoints))
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=1, host_memory_bytes=1 << 30)
    unit = Unit(NativeEngine(settings), unit_id="u1", node="n", pool="p", num_gpus=1)
    loop = ControlLoop(stream_token="t", first_version=1, started_s=0.0)
    planner = PlannerInPlace(SearchSolver(), Estimator())
    loop.set_catalog(catalog_of({name: demo_checkpoints[name]}), expected_units={"p": 1}, planner=planner)
    await unit.start()
    fleet = Fleet(unit, loop)
    try:
        fleet.asked[name] = 0
        await fleet.until({})
        fleet.asked[name] = 1
        await fleet.until({name: ModelPhase.READY}, waiting=1)
        await fleet.until({name: ModelPhase.ASLEEP})
        (model,) = loop.status(fleet.now_s).models
        assert (model.is_asleep, model.asleep_on) == (True, ("u1",))

        fleet.asked[name] = 2
        await fleet.until({name: ModelPhase.READY}, waiting=1)
        moves = [move for d in reversed(loop.status(fleet.now_s).decisions) for move in d.moves]
        assert moves == [f"load {name} on u1", f"drain {name} from u1", f"wake {name} on u1"]
    finally:
        await unit.stop()
