"""A pool's profile is what its units are planned by."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fleet_model import FakeUnit

from deploy.control.planner import PlanAnswer, Planner, PlanTask
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.planning.fleet_planning import plan_fleet, units_of_fleet
from deploy.planning.planner_process import PlannerProcess
from deploy.planning.profiled_costs import readable_costs
from deploy.serve.controller import Controller
from deploy.serve.render import controller_config
from profiler.devices import DEVICES
from profiler.gpus.h100 import DEVICE as H100
from profiler.measurement import Measurement
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import read_profile, write_profile
from profiler.specs import ModelSpec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 640,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
FLEET = """
models:
  - {id: m, source: ./m, slo: {ttft_s: 5, tbt_s: 1}, demand: {rate_per_s: 200, prompt_tokens: 100, output_tokens: 8}}
pools:
  - {name: p, device: simulated, profile: PROFILE, kv_memory: 64MiB, device_memory: 8GiB}
"""


CASES = pytest.mark.parametrize(("seconds", "bears_it"), [(0.25, False), (0.0005, True)])


def profiled_fleet(tmp_path: Path, seconds: float) -> FleetFile:
    """Every launch takes so long."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(CONFIG))
    shapes = [LaunchShape(sms=132, prompts=1, new_tokens=n) for n in (8, 64, 512)]
    shapes += [LaunchShape(sms=132, sequences=n, depth=100) for n in (1, 8, 64)]
    measured = tuple(
        Measurement(launch=s, seconds=seconds, high_s=seconds, repeats=3, is_held_out=held)
        for s in shapes
        for held in (False, True)
    )
    model = ModelProfile(spec=ModelSpec.from_config(CONFIG), measurements=measured)
    profile = Profile(
        engine="native", device=replace(H100, name="cpu-measured"), num_gpus=1, machine={}, models={"m": model}
    )
    write_profile(profile, tmp_path / "p.parquet")
    text = FLEET.replace("PROFILE", str(tmp_path / "p.parquet"))

    return parse_fleet_file(text, name="f.yaml", base=tmp_path)


@CASES
def test_plan__pool_with_a_profile__is_made_by_what_was_measured(
    tmp_path: Path, seconds: float, bears_it: bool
) -> None:
    """Of the same device and the same model, only the measured seconds differ."""
    planned = plan_fleet(profiled_fleet(tmp_path, seconds))

    assert (planned.estimate().served_share > 0.99) is bears_it


def test_units__of_a_pool_with_a_profile__do_not_read_it_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many launches takes long to fit, and a plan for a thousand GPUs did so a thousand times."""
    fleet = profiled_fleet(tmp_path, 0.01)
    pool = fleet.pools[0].model_copy(update={"gpu_type": "H100", "device_memory": None, "kv_memory": None})
    read: list[Path] = []

    def noted(path: Path) -> Profile:
        read.append(path)
        return read_profile(path)

    monkeypatch.setattr("profiler.profile_file.read_profile", noted)
    reads = []
    for nodes in (1, 50):
        larger = pool.model_copy(update={"nodes": pool.nodes.model_copy(update={"min": nodes})})
        assert len(units_of_fleet(fleet.model_copy(update={"pools": (larger,)}))) == nodes
        reads.append(len(read))
        read.clear()

    assert reads[0] == reads[1]


@CASES
async def test_running_fleet__pool_with_a_profile__is_planned_and_explained_as_its_file_is(
    tmp_path: Path, seconds: float, bears_it: bool
) -> None:
    fleet = profiled_fleet(tmp_path, seconds)
    capacity = plan_fleet(fleet).units[0]
    asked: list[PlanTask] = []

    def planner_for(solver: str, profiles: Mapping[str, str]) -> Planner:
        planner = PlannerProcess().using(solver, profiles)
        started.append(planner)
        return Noting(planner, asked)

    started: list[PlannerProcess] = []
    controller = Controller(token="t", planner_for=planner_for)
    await controller.reconfigure(controller_config(fleet).as_user_config())
    unit = FakeUnit(unit_id="u", total_blocks=capacity.total_blocks, memory_bytes=capacity.memory_bytes)
    async with asyncio.timeout(60):
        while not (await controller.heartbeat(unit.report())).models:  # noqa: ASYNC110  (a unit polls, too)
            await asyncio.sleep(0.02)
    told = json.loads(await controller.fleet_report(explain="m"))
    started[0].ask(asked[0])
    async with asyncio.timeout(60):
        while (answer := started[0].answer()) is None:  # noqa: ASYNC110  (processes set no event)
            await asyncio.sleep(0.02)
    await started[0].close()

    assert (told["model"]["served_per_s"] > 0.99 * told["model"]["rate_per_s"]) is bears_it
    assert (answer.then.served_share["m"] > 0.99) is bears_it


@dataclass
class Noting:
    """Implements control.planner.Planner."""

    planner: PlannerProcess
    tasks: list[PlanTask]

    def ask(self, task: PlanTask) -> None:
        self.tasks.append(task)
        self.planner.ask(task)

    def answer(self) -> PlanAnswer | None:
        return self.planner.answer()


def test_costs__profile_that_is_not_on_this_node__are_those_of_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    costs = readable_costs({"p": str(tmp_path / "gone.parquet")})

    assert costs.device_of(FakeUnit(unit_id="u", device="A40").report()) == DEVICES["A40"]
    assert "the plan does without a profile" in caplog.text
