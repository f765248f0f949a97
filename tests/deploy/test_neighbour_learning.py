"""What models lost to their neighbours beyond the estimate: learned by pair, bounded, fading, over a restart."""

from dataclasses import dataclass, field, replace

import pytest
from fleet_model import FakeUnit
from model_shapes import LLAMA_2_7B

from deploy.control.neighbour_learning import NeighbourLearning
from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import ModelLoad, NeighbourLoss
from placement.demand import ModelDemand
from placement.estimation.expected_losses import expected_sharing
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.neighbour_strain import NeighbourStrain
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.problem import PlacementModel
from profiler.gpus.a40 import DEVICE as A40
from profiler.specs import DeviceSpec
from traces.timeliness import SloTarget

GIB = 2**30
RATE_PER_S, OUTPUT_TOKENS = 1.0, 20
SLO = SloTarget(ttft_s=2.0, tbt_s=0.2)


def capacity(device: DeviceSpec | None = A40) -> UnitCapacity:
    return UnitCapacity(
        unit_id="u", num_gpus=1, memory_bytes=40 * GIB, block_bytes=8192, total_blocks=8 * GIB // 8192, device=device
    )


def placement_model(name: str) -> PlacementModel:
    demand = ModelDemand(model=name, rate_per_s=RATE_PER_S, prompt_tokens=700, output_tokens=OUTPUT_TOKENS)
    return PlacementModel(
        model=name, spec=LLAMA_2_7B, demand=demand, min_replicas=1, max_replicas=1, max_model_len=4096, slo=SLO
    )


@dataclass
class Shared:
    """A unit of two models, `a` and `b`, and the control loop's learning beside it."""

    learning: NeighbourLearning = field(default_factory=NeighbourLearning)
    now_s: float = 0.0
    loads: dict[str, ModelLoad] = field(default_factory=dict)

    def run(
        self, seconds: float, *, late: float = 0.0, ttft_lost_s: float = 0.0, tbt_lost_s: float = 0.0, extra: str = ""
    ) -> None:
        """Of `a`'s requests `late` are, and each of its first tokens and gaps loses so much to `b`."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            for model in ("a", "b", *extra):
                is_hurt = model == "a"
                other = "b" if is_hurt else "a"
                before = self.loads.get(model) or empty(model, other)
                (lost,) = before.lost_to
                gaps = RATE_PER_S * (OUTPUT_TOKENS - 1)
                self.loads[model] = replace(
                    before,
                    requests_ended_total=before.requests_ended_total + RATE_PER_S,
                    requests_in_time_total=before.requests_in_time_total + RATE_PER_S * (1 - late * is_hurt),
                    output_tokens_total=before.output_tokens_total + OUTPUT_TOKENS,
                    lost_to=(
                        NeighbourLoss(
                            neighbour=other,
                            ttft_s=lost.ttft_s + is_hurt * ttft_lost_s * RATE_PER_S,
                            tbt_s=lost.tbt_s + is_hurt * tbt_lost_s * gaps,
                        ),
                    ),
                )
            self.learning.evidence.hear(self.report(), self.now_s)

    def report(self) -> UnitReport:
        report = FakeUnit(unit_id="u").report()
        assert report.load is not None
        return replace(report, load=replace(report.load, models=tuple(self.loads.values())))

    def settle(self, *, device: DeviceSpec | None = A40) -> None:
        placed = {name: placement_model(name) for name in "ab"}
        self.learning.settle(
            self.now_s, capacity_of={"u": capacity(device)}.get, model_of=placed.get, estimator=Estimator()
        )

    def lost(self) -> float:
        return sum(s.target_part for s in self.learning.of_model("a"))


def empty(model: str, other: str) -> ModelLoad:
    nothing = NeighbourLoss(neighbour=other, ttft_s=0.0, tbt_s=0.0)
    return ModelLoad(
        model=model,
        running=0,
        waiting=0,
        used_blocks=0,
        quota_blocks=1,
        preemptions_total=0,
        prompt_tokens_total=0,
        output_tokens_total=0,
        lost_to=(nothing,),
    )


def hurt() -> Shared:
    shared = Shared()
    shared.run(120, late=0.5, ttft_lost_s=1.0)
    return shared


def test_pair__late_and_loses_more_than_expected__estimate_then_says_what_was_in_time() -> None:
    shared = hurt()
    shared.settle()
    models = [replace(placement_model(n), strains=shared.learning.of_model(n)) for n in "ab"]
    plan = Plan(units=(UnitPlan(unit_id="u", models=tuple(ModelPlacement(model=m, quota_blocks=1) for m in "ab")),))

    without, with_it = (
        estimate([capacity()], m, plan, Estimator()).worst_share
        for m in ([placement_model("a"), placement_model("b")], models)
    )

    assert without == 1.0
    assert with_it == pytest.approx(0.5, abs=0.03)
    assert shared.learning.of_model("b") == ()


def test_pair__gaps_lose_more_than_expected__is_learned_too() -> None:
    shared = Shared()
    shared.run(120, late=0.5, tbt_lost_s=0.15)
    shared.settle()

    assert shared.lost() > 0.5


@pytest.mark.parametrize(
    ("late", "ttft_lost_s"),
    [(0.02, 1.0), (0.5, 0.0), (0.5, 0.04)],
    ids=["in time", "loses nothing", "loses what is expected"],
)
def test_pair__does_no_harm_beyond_the_estimate__is_not_learned(late: float, ttft_lost_s: float) -> None:
    shared = Shared()
    shared.run(120, late=late, ttft_lost_s=ttft_lost_s)
    shared.settle()

    assert shared.lost() == 0.0


def test_pair__unit_stood_still_for_a_while__says_what_it_said_before() -> None:
    paused, other = hurt(), hurt()
    paused.now_s += 50.0
    paused.run(5, late=0.5, ttft_lost_s=1.0)
    other.run(5, late=0.5, ttft_lost_s=1.0)
    paused.settle()
    other.settle()

    assert paused.lost() == pytest.approx(other.lost(), rel=0.05)


def test_pair__control_loop_stood_still__says_what_it_said_before() -> None:
    """Its clock stands with it, and units count on: a sample of 14 s would pass for one of 5 s."""
    stood_s = [0.0]
    stalled, other = Shared(learning=NeighbourLearning(lambda: stood_s[0])), hurt()
    stalled.run(120, late=0.5, ttft_lost_s=1.0)
    heard, stalled.learning.evidence.hear = stalled.learning.evidence.hear, lambda report, now_s: None
    stalled.run(9, late=0.5, ttft_lost_s=1.0)
    stalled.learning.evidence.hear = heard
    stalled.now_s, stood_s[0] = stalled.now_s - 9.0, 9.0
    stalled.run(5, late=0.5, ttft_lost_s=1.0)
    other.run(14, late=0.5, ttft_lost_s=1.0)
    for shared in (stalled, other):
        ((_, unit),) = shared.learning.evidence.units(shared.now_s)
        assert unit.models["a"].requests / unit.span_s == pytest.approx(RATE_PER_S, rel=0.01)


def test_pair__few_requests__says_nothing() -> None:
    shared = Shared()
    shared.run(15, late=0.5, ttft_lost_s=1.0)
    shared.settle()

    assert shared.lost() == 0.0


def test_pair__on_cores_of_unknown_speed__nothing_is_expected_and_nothing_learned() -> None:
    shared = hurt()
    shared.settle(device=None)

    assert shared.lost() == 0.0


def test_strain__whatever_is_measured__is_bounded() -> None:
    shared = Shared()
    shared.run(120, late=1.0, ttft_lost_s=1e6)
    shared.settle()

    assert 0 < shared.lost() * RATE_PER_S <= 2.0


def test_strain__measured_again_about_the_same__stays_as_it_was() -> None:
    shared = hurt()
    shared.settle()
    before = shared.learning.of_model("a")
    shared.run(30, late=0.52, ttft_lost_s=1.1)
    shared.settle()

    assert shared.learning.of_model("a") == before != ()


def test_strain__the_two_are_apart__fades_and_is_forgotten() -> None:
    shared = hurt()
    shared.settle()
    seen, parts = shared.now_s, [shared.lost()]
    for hours in (0.5, 1.0, 12.0):
        shared.now_s = seen + 3600 * hours
        shared.settle()
        parts.append(shared.lost())

    assert parts[1] == pytest.approx(parts[0] / 2, rel=0.3)
    assert parts[0] > parts[1] > parts[2] > parts[3] == 0.0


def test_evidence__engine_restarts_or_another_model_comes__begins_anew() -> None:
    restarted = hurt()
    restarted.loads.clear()
    joined = hurt()
    for shared, extra in ((restarted, ""), (joined, "c")):
        shared.run(12, extra=extra)
        shared.settle()

        assert shared.lost() == 0.0


def test_evidence__model_that_is_not_placed_by_itself__is_left_out() -> None:
    """An adapter's losses are told of its base."""
    shared = Shared()
    shared.run(120, late=0.5, ttft_lost_s=1.0, extra="z")
    shared.settle()

    assert [s.neighbour for s in shared.learning.of_model("a")] == ["b"]


def test_strains__of_the_control_loop_before__hold_for_the_next() -> None:
    shared = hurt()
    shared.settle()
    successor = Shared(now_s=shared.now_s)
    successor.learning.restore(shared.learning.kept())
    successor.settle()

    assert successor.learning.of_model("a") == shared.learning.of_model("a")
    assert isinstance(successor.learning.of_model("a")[0], NeighbourStrain)


def test_expected_sharing__busier_neighbour__is_expected_to_cost_more() -> None:
    models = [placement_model(n) for n in "ab"]
    calm, busy = (expected_sharing(capacity(), models, {"a": 1.0, "b": rate}, Estimator()) for rate in (0.5, 2.0))

    assert calm.headroom > busy.headroom > 1
    assert 0 < calm.losses["a", "b"].ttft_s < busy.losses["a", "b"].ttft_s
    assert 0 < calm.losses["a", "b"].tbt_s < busy.losses["a", "b"].tbt_s
    assert expected_sharing(capacity(), models, {"a": 1.0, "b": 1e3}, Estimator()).losses == {}
