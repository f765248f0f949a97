"""What units measure of their steps corrects plans: bounded, decayed, by unit and engine, over a restart."""

import math
from dataclasses import dataclass, field, replace

import pytest
from fleet_model import FakeUnit

from deploy.control.control_rules import ControlRules, rules_of
from deploy.control.step_evidence import StepEvidence
from deploy.control.step_learning import StepLearning, split_residuals
from deploy.fleet_file.settings import PlacementSection
from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import StepPhase, StepTotals
from placement.plan import UnitCapacity
from placement.step_correction import UNCORRECTED

STEP_S = 0.02
HOST_S = 0.001
CAPACITY = UnitCapacity(unit_id="u", num_gpus=1, memory_bytes=1, block_bytes=1, total_blocks=1, pool="p")


@dataclass
class Measured:
    """Units that run launches, and the control loop's learning beside them."""

    learning: StepLearning = field(default_factory=StepLearning)
    now_s: float = 0.0
    totals: dict[tuple[str, str, str], StepTotals] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)

    def run(self, unit: str, model: str, factor: float, launches: int = 100, phase: str = StepPhase.PREFILL) -> None:
        before = self.totals.get((unit, model, phase), StepTotals(model=model, phase=phase, quarters=4))
        self.totals[unit, model, phase] = StepTotals(
            model=model,
            phase=phase,
            quarters=4,
            launches=before.launches + launches,
            modelled_s=before.modelled_s + launches * STEP_S,
            measured_s=before.measured_s + launches * factor * (STEP_S + HOST_S),
        )
        self.beat(unit)

    def beat(self, unit: str, place: str | None = None) -> None:
        self.now_s += 0.5
        self.learning.evidence.hear(self.report(unit), place or f"place of {unit}", host_s=HOST_S, now_s=self.now_s)

    def report(self, unit: str) -> UnitReport:
        report = FakeUnit(unit_id=unit).report()
        assert report.load is not None
        steps = tuple(totals for (of, _, _), totals in self.totals.items() if of == unit)
        return replace(report, engine=self.engines.get(unit, "e 1"), load=replace(report.load, steps=steps))

    def settle(self, *, applies: bool = True) -> None:
        self.learning.settle(self.now_s, contention=1.1, applies=applies)

    def prefill(self, unit: str) -> float:
        return self.learning.of_unit(unit, "p").prefill


def test_unit__slower_than_the_others__is_corrected_and_they_are_not() -> None:
    made = Measured()
    for unit, factor in (("u", 1.3), ("v", 1.0), ("w", 1.01), ("x", 0.99)):
        for model in ("a", "b"):
            made.run(unit, model, factor)
    made.settle()

    assert made.prefill("u") == pytest.approx(1.3, rel=0.05)
    assert [made.learning.of_unit(u, "p") for u in ("v", "w", "x")] == [UNCORRECTED] * 3
    assert made.learning.of_unit("u", "p").decode == 1.0
    assert made.learning.of_model("a") == UNCORRECTED


def test_model__slow_on_every_unit__is_corrected_itself() -> None:
    made = Measured()
    for unit in ("u", "v", "w"):
        made.run(unit, "slow", 1.4)
        for model in ("a", "b", "c"):
            made.run(unit, model, 1.0)
    made.settle()

    product = made.learning.of_model("slow").prefill * made.prefill("u")
    assert product == pytest.approx(1.4, rel=0.1)
    assert made.prefill("u") == pytest.approx(1.0, rel=0.1)


def test_pool__slower_than_its_table__so_is_a_unit_that_has_not_run_yet() -> None:
    made = Measured()
    for unit in ("u", "v", "w"):
        made.run(unit, "a", 1.2)
    made.settle()

    assert made.prefill("idle") == made.prefill("u") == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize(("factor", "bound"), [(20.0, 3.0), (0.01, 0.5)])
def test_correction__absurd_measurement__is_bounded(factor: float, bound: float) -> None:
    made = Measured()
    made.run("u", "a", factor)
    made.run("u", "b", factor)
    made.settle()

    assert made.prefill("u") == pytest.approx(bound, rel=0.05)


def test_correction__few_launches__is_none() -> None:
    made = Measured()
    made.run("u", "a", 1.5, launches=29)
    made.settle()
    assert made.prefill("u") == 1.0

    made.run("u", "a", 1.5, launches=2)
    made.settle()
    assert made.prefill("u") > 1.3


def test_correction__unit_that_recovers__fades_and_one_that_rests_keeps_it() -> None:
    made = Measured()
    made.run("u", "a", 1.5, launches=500)
    made.settle()
    slow = made.prefill("u")

    made.now_s += 1800
    made.beat("u")
    made.settle()
    assert made.prefill("u") == slow

    for _ in range(400):
        made.now_s += 4.5
        made.run("u", "a", 1.0, launches=10)
    made.settle()
    assert made.prefill("u") == 1.0


def test_correction__noise_within_the_band__changes_nothing() -> None:
    made = Measured()
    made.run("u", "a", 1.3)
    made.settle()
    before = made.prefill("u")
    for factor in (1.33, 1.27, 1.32):
        made.run("u", "a", factor)
        made.settle()
        assert made.prefill("u") == before


def test_contention__decode_beside_prefills_is_slower_than_expected__is_the_pools() -> None:
    made = Measured()
    for unit in ("u", "v", "w"):
        made.run(unit, "a", 1.0, phase=StepPhase.DECODE)
        made.run(unit, "a", 1.1 * 1.25, phase=StepPhase.DECODE_BESIDE)
    made.settle()

    assert made.learning.of_unit("u", "p").contention == pytest.approx(1.25, rel=0.05)


def test_mixed_steps__nothing_else_was_measured__stand_in_for_both_phases() -> None:
    made = Measured()
    made.run("u", "a", 1.4, phase=StepPhase.MIXED)
    made.settle()

    correction = made.learning.of_unit("u", "p")
    assert correction.prefill == correction.decode > 1.3


@pytest.mark.parametrize(("engine", "is_known"), [("e 1", True), ("e 2", False)])
def test_unit__takes_a_lost_ones_place__starts_with_its_evidence_if_the_engine_is_the_same(
    engine: str, is_known: bool
) -> None:
    made = Measured()
    made.run("u", "a", 1.5)
    made.engines["new"] = engine
    made.beat("new", place="place of u")
    made.settle()

    assert (made.prefill("new") > 1.3) is is_known
    assert list(made.learning.evidence.residuals("u")) == []


def test_evidence__over_a_restart__goes_on_and_is_not_counted_twice() -> None:
    made = Measured()
    made.run("u", "a", 1.5)
    made.settle()
    after = Measured(learning=StepLearning(StepEvidence()), now_s=5.0, totals=made.totals)
    after.learning.evidence.restore(made.learning.kept, now_s=5.0)
    after.beat("u")
    after.settle()

    (residual,) = after.learning.evidence.residuals("u")
    assert residual.launches == 100
    assert residual.factor == pytest.approx(1.5)
    assert after.prefill("u") == made.prefill("u") > 1.3


def test_model__leaves_and_comes_back__its_totals_begin_again() -> None:
    made = Measured()
    made.run("u", "a", 1.5, launches=100)
    made.totals.clear()
    made.run("u", "a", 1.5, launches=40)

    (residual,) = made.learning.evidence.residuals("u")
    assert residual.launches == pytest.approx(140, rel=0.01)


def test_learning__switched_off__corrects_nothing_and_still_tells() -> None:
    made = Measured()
    made.run("u", "a", 1.5)
    made.settle()
    assert made.learning.corrected(CAPACITY).correction.prefill > 1.3
    made.settle(applies=False)

    assert made.learning.corrected(CAPACITY).correction == UNCORRECTED
    assert made.prefill("u") > 1.3
    assert next(made.learning.evidence.residuals("u")).factor == pytest.approx(1.5)


def test_split__one_unit_with_one_model__blames_the_unit() -> None:
    found = split_residuals({("u", "a"): math.log(1.3)}, {"u": "p"})

    assert found.of_unit("u", "p") > 3 * found.models["a"]


def test_rules__fleet_file_says_nothing__are_the_control_loops_own_and_correct_plans() -> None:
    rules = rules_of(PlacementSection(), hold_s=30.0)

    assert rules == ControlRules()
    assert rules.learn
