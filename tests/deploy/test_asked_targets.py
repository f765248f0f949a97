"""Targets that requests name are planned for: from a gateway's counts to a plan that meets them."""

from collections.abc import Iterable

import pytest
from fleet_model import World, catalog, catalog_model
from test_following_demand import GIB, LLAMA_7B

from deploy.commands.explain import show
from deploy.commands.terminal import terminal
from deploy.control.control_rules import ControlRules
from deploy.control.target_learning import TargetLearning
from pdmux_actor.messages import Slo
from placement.demand import ModelDemand, TargetMix, TargetShare, together
from placement.solvers.search import SearchSolver
from router.admission.demand_counts import TargetCounts
from router.admission.demand_report import ModelAsked
from traces.timeliness import SloTarget

OWN = Slo(ttft_s=2.0, tbt_s=0.2)
TIGHT = Slo(ttft_s=2.0, tbt_s=0.035)


def counted(targets: Iterable[Slo]) -> TargetCounts:
    counts = TargetCounts()
    for target in targets:
        counts.asked(target, OWN)
    return counts


def asked(requests: int, targets: TargetCounts) -> ModelAsked:
    return ModelAsked(
        model="m",
        requests_total=requests,
        prompt_tokens_total=0,
        output_tokens_total=0,
        ttft_targets=targets.ttft(),
        tbt_targets=targets.tbt(),
    )


def test_counts__any_targets__are_bounded_and_a_tenth_tighter_at_most() -> None:
    counts = counted(Slo(ttft_s=1e-9 * 1.013**i, tbt_s=0.0301) for i in range(5000))

    assert len(counts.ttft()) < 160
    assert sum(t.requests_total for t in counts.ttft()) == 5000
    (tbt,) = counts.tbt()
    assert 0.9 * 0.0301 < tbt.target_s <= 0.0301


def test_counts__the_models_own_targets__are_none() -> None:
    assert counted([OWN, Slo(ttft_s=OWN.ttft_s, tbt_s=0.1)]).ttft() == ()


def test_learning__tight_targets_of_some__share_is_found_and_forgotten() -> None:
    learning, total, targets = TargetLearning(), 0, TargetCounts()
    before = asked(0, TargetCounts())
    for named in (50, 50, 50, 50, 50, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        for _ in range(named // 2):
            targets.asked(TIGHT, OWN)
        total += 50
        now = asked(total, targets)
        learning.count(before, now)
        learning.average(50)
        before = now
        if total == 300:
            (share,) = learning.mix.tbt
            assert share.share == pytest.approx(0.5 * (1 - 2.718281828 ** -(300 / 200)), rel=0.01)
    assert learning.mix.tbt[0].share < 0.03


@pytest.mark.parametrize(
    ("shares", "planned_s"),
    [
        ([], 0.2),
        ([(0.03, 0.04)], 0.2),
        ([(0.03, 0.04), (0.05, 0.02)], 0.05),
        ([(0.03, 0.3)], 0.03),
        ([(9.0, 0.97)], 0.2),
        ([(9.0, 1.0)], 9.0),
        ([(5.0, 0.5), (9.0, 0.5)], 5.0),
    ],
)
def test_mix__shares_of_targets__plan_for_all_but_a_few(shares: list[tuple[float, float]], planned_s: float) -> None:
    mix = TargetMix(tbt=tuple(TargetShare(target_s=t, share=s) for t, s in shares))

    assert mix.planned(SloTarget(ttft_s=2.0, tbt_s=0.2)) == SloTarget(ttft_s=2.0, tbt_s=planned_s)


NAMES = ("quick", "bulk0", "bulk1")


def world() -> World:
    """Three models on two A40s: by their own targets it does not matter which two are together."""
    rules = ControlRules(replan="auto", replan_every_s=5.0, min_residency_s=20.0, max_moves_per_min=20)
    models = [catalog_model(m, replicas=1, spec=LLAMA_7B, max_replicas=1) for m in NAMES]
    made = World(catalog(*models), expected_units=2, solver=SearchSolver(), rules=rules)
    made.prompt_tokens, made.output_tokens = 800, 60
    for _ in range(2):
        unit = made.start_unit(total_blocks=4 * GIB // 8192, memory_bytes=46 * GIB)
        unit.device = "A40"
    return made


def neighbours(made: World) -> set[str]:
    (home,) = made.serving("quick")
    return {m for m in NAMES if home in made.serving(m)} - {"quick"}


def test_control_loop__clients_ask_for_tighter_targets__model_is_placed_so_that_they_are_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = world()
    made.beat(100, asks=dict.fromkeys(NAMES, 1))
    before = made.loop.explain("quick", made.now_s)
    assert neighbours(made) == {"bulk0"}
    made.targets["quick"] = TIGHT
    made.beat(200, asks=dict.fromkeys(NAMES, 1))

    told = made.loop.explain("quick", made.now_s)
    assert neighbours(made) == set()
    assert before.targets is None
    assert told.targets is not None
    assert told.targets.planned.ttft_s == OWN.ttft_s
    assert 0.9 * TIGHT.tbt_s < told.targets.planned.tbt_s <= TIGHT.tbt_s
    assert told.targets.tighter > 0.5
    assert told.model.served_share == pytest.approx(1.0)
    assert "100% of quick served instead of 0%" in made.decided("plan")[0]
    show(terminal(), told)
    assert "of its requests ask for tighter targets than its own" in " ".join(capsys.readouterr().out.split())


def test_demand__of_a_handed_over_loop__keeps_its_targets() -> None:
    made = world()
    made.targets["quick"] = TIGHT
    made.beat(80, asks=dict.fromkeys(NAMES, 1))

    made.hand_over()
    made.beat(4)

    told = made.loop.explain("quick", made.now_s)
    assert told.targets is not None


def test_estimate__targets_that_no_unit_meets__leaves_the_models_own_in_force() -> None:
    made = world()
    made.targets["quick"] = Slo(ttft_s=2.0, tbt_s=0.001)
    made.beat(120, asks=dict.fromkeys(NAMES, 1))

    told = made.loop.explain("quick", made.now_s)
    assert told.model.meets_slo


def test_together__adapters_targets__are_weighed_by_their_rates() -> None:
    mix = TargetMix(tbt=(TargetShare(target_s=0.03, share=0.4),))
    one = ModelDemand(model="a", rate_per_s=1.0, prompt_tokens=1, output_tokens=1, targets=mix)
    other = ModelDemand(model="b", rate_per_s=3.0, prompt_tokens=1, output_tokens=1)

    assert together("a", [one, other]).targets.tbt == (TargetShare(target_s=0.03, share=0.1),)
