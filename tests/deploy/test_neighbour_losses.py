"""What `muxfleet status` and `explain` say of models that others hold up."""

from dataclasses import replace

import pytest
from fleet_model import SPEC
from test_live_fleet import load, model, status, unit

from deploy.commands.explain import show
from deploy.commands.fleet_tables import problems
from deploy.commands.terminal import terminal
from pdmux_actor.messages import NeighbourLoss, Slo
from placement.demand import ModelDemand
from placement.estimation.problem_arrays import Estimator
from placement.neighbour_strain import NeighbourStrain
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.plan_explanation import explain
from placement.problem import PlacementModel

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
LOST = (
    NeighbourLoss(neighbour="n", ttft_s=9.0, tbt_s=0.5),
    NeighbourLoss(neighbour="o", ttft_s=2.0, tbt_s=0.7),
)


@pytest.mark.parametrize(
    ("ttft_lost_s", "tbt_lost_s", "told"),
    [
        (0.24, 0.024, []),
        (None, None, []),
        (0.4, 0.02, ["m on unit u: a first token loses 400 of 1000 ms to others, most of it to n"]),
        (0.1, 0.04, ["m on unit u: a gap between tokens loses 40 of 100 ms to others, most of it to o"]),
    ],
)
def test_status__neighbours_take_much_of_a_target__says_which(
    ttft_lost_s: float | None, tbt_lost_s: float | None, told: list[str]
) -> None:
    suffering = load("m", ttft_lost_s=ttft_lost_s, tbt_lost_s=tbt_lost_s, lost_to=LOST)

    assert list(problems(status((unit("u", suffering),), models=(model(slo=SLO),)))) == told


def test_status__model_without_a_target__says_nothing() -> None:
    suffering = load("m", ttft_lost_s=9.0, tbt_lost_s=9.0, lost_to=LOST)

    assert list(problems(status((unit("u", suffering),), models=(model(slo=None),)))) == []


def test_explain__pair_was_seen_to_hurt__says_who_loses_what(capsys: pytest.CaptureFixture[str]) -> None:
    def placed(name: str) -> PlacementModel:
        demand = ModelDemand(model=name, rate_per_s=2.0, prompt_tokens=100, output_tokens=10)
        return PlacementModel(model=name, spec=SPEC, demand=demand, min_replicas=1, max_replicas=1, max_model_len=1024)

    hurt = [replace(placed("m"), strains=(NeighbourStrain(neighbour="n", target_part=0.2),)), placed("n")]
    unit = UnitCapacity(unit_id="u", num_gpus=1, memory_bytes=2**30, block_bytes=2**14, total_blocks=2**14)
    both = tuple(ModelPlacement(model=name, quota_blocks=1) for name in "mn")
    plan = Plan(units=(UnitPlan(unit_id="u", models=both),))

    for name in "mn":
        show(terminal(), explain(name, [unit], hurt, plan, Estimator()))

    told = " ".join(capsys.readouterr().out.split())
    assert "beside n it was seen to lose 40% of a target more than is estimated" in told
    assert "m was seen to lose 40% of a target more beside it than is estimated" in told
