"""The picture that consoles follow."""

from dataclasses import replace

import msgspec
import pytest
from fleet_model import FakeUnit

from deploy.control.decision_history import PlacementDecision
from deploy.control.fleet_status import FleetStatus, ModelState, UnitStatus
from deploy.control.plan_worth import Appraisal, PlanLook
from deploy.inspection.live_fleet import MAX_UNITS, LiveFleet, LiveSelection
from deploy.inspection.live_history import LiveHistory, RecentRequests
from deploy.inspection.live_picture import lent_blocks, live_fleet
from deploy.inspection.plan_report import plan_report
from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase
from pdmux_actor.messages import LoadReport, ModelLoad, NeighbourLoss, Slo
from placement.plan import ModelPlacement, Plan, UnitPlan
from router.admission.demand_report import ModelAsked, added

SLO = Slo(ttft_s=1.0, tbt_s=0.1)


def load(model: str = "m", **changes) -> ModelLoad:
    figures = {"running": 0, "waiting": 0, "used_blocks": 0, "quota_blocks": 100, "preemptions_total": 0}
    return ModelLoad(model=model, prompt_tokens_total=0, output_tokens_total=0, **{**figures, **changes})


def unit(name: str = "u", *loads: ModelLoad, silent_s: float = 0.1, pool: str = "p", **changes) -> UnitStatus:
    fake = FakeUnit(unit_id=name, pool=pool)
    fake.phases = {m.model: ModelPhase.READY for m in loads}
    report = fake.report()
    assert report.load is not None
    return UnitStatus(report=replace(report, load=replace(report.load, models=loads)), silent_s=silent_s, **changes)


def model(name: str = "m", **changes) -> ModelState:
    known = {"phases": (ModelPhase.READY,), "planned_units": ("u",), "problem": None, "slo": SLO}
    return ModelState(model=name, **{**known, **changes})


def asked(name: str = "m", **changes) -> ModelAsked:
    return ModelAsked(model=name, requests_total=0, prompt_tokens_total=0, output_tokens_total=0, **changes)


def status(units: tuple[UnitStatus, ...], models: tuple[ModelState, ...] | None = None, **changes) -> FleetStatus:
    nothing = Plan(units=())
    known = {"policy": "mux", "plan": nothing, "goal": nothing, "decisions": ()}
    return FleetStatus(models=models or (model(),), units=units, **{**known, **changes})


def picture(
    told: FleetStatus, selection: LiveSelection | None = None, recent: RecentRequests | None = None
) -> LiveFleet:
    return live_fleet(told, selection or LiveSelection(), {"m": recent or RecentRequests()}, 1000.0)


def ended(in_time: int, **late: int) -> RecentRequests:
    """Of a hundred."""
    return RecentRequests(ended=100, in_time=in_time, **late)


def test_blocks__one_borrows__are_told_as_own_borrowed_and_lent() -> None:
    borrower = load("m", used_blocks=130, borrowed_blocks=30, cached_blocks=7)
    lender, other = load("n", used_blocks=40), load("o", used_blocks=80)
    (told,) = picture(status((unit("u", borrower, lender, other),))).units
    m, n, o = told.models

    assert (m.own_blocks, m.borrowed_blocks, m.cached_blocks, m.lent_blocks) == (100, 30, 7, 0)
    assert n.lent_blocks > o.lent_blocks > 0
    assert n.lent_blocks + o.lent_blocks == 30


def test_lent_blocks__nobody_borrows__are_none() -> None:
    report = LoadReport(
        models=(load(), load("n")), total_blocks=200, free_blocks=200, prefill_sms=1, decode_sms=1, steps_total=0
    )
    assert set(lent_blocks(report).values()) == {0}


@pytest.mark.parametrize(
    ("state", "loads", "recent", "silent_s", "why"),
    [
        (model(problem="its checkpoint\nis gone"), (), None, 0.1, "its checkpoint is gone"),
        (model(), (load(),), ended(100), 9.0, "1 of its 1 units is silent"),
        (
            model(
                phases=(ModelPhase.LOADING,),
                progress=LoadProgress(stage=LoadStage.READING, done_bytes=43, total_bytes=100),
                asked=asked(waiting=2, held=2),
            ),
            (),
            None,
            0.1,
            "loading 43%; 2 requests wait for a unit that has it",
        ),
        (model(), (load(used_blocks=97, waiting=3),), ended(50), 0.1, "out of KV blocks: 97 of 100"),
        (
            model(),
            (load(ttft_lost_s=0.4, lost_to=(NeighbourLoss(neighbour="n", ttft_s=9.0, tbt_s=0.0),)),),
            ended(50),
            0.1,
            "a first token loses 400 ms to n",
        ),
        (
            model(asked=asked(waiting=30, oldest_wait_s=4.0)),
            (load(waiting=5),),
            ended(100),
            0.1,
            "more is asked than its units take: 30 wait, the oldest for 4.0 s",
        ),
        (
            model(),
            (load(tbt_lost_s=0.04, lost_to=(NeighbourLoss(neighbour="n", ttft_s=0.0, tbt_s=9.0),)),),
            ended(50),
            0.1,
            "a gap between tokens loses 40 ms to n",
        ),
        (
            model(),
            (load(waiting=1, ttft_attainment=0.95),),
            ended(50, first_late=12, gaps_late=38),
            0.1,
            "50% of its requests were in time; of the last 100: 12 had a late first token by waiting at the gateway, "
            "38 had a late gap between tokens",
        ),
        (
            model(),
            (load(ttft_attainment=0.4),),
            ended(50, first_late=12, shed=30, no_capacity=8),
            0.1,
            "50% of its requests were in time; of the last 100: 30 were turned away by overload, 8 found no unit, "
            "12 had a late first token",
        ),
        (model(), (load(request_attainment=0.5),), None, 0.1, "50% of its requests were in time"),
    ],
)
def test_model__in_trouble__suffers_and_says_why(state, loads, recent, silent_s, why) -> None:
    (told,) = picture(status((unit("u", *loads, silent_s=silent_s),), (state,)), recent=recent).models
    assert told.suffers
    assert told.why == why


def test_model__in_time_and_served__does_not_suffer() -> None:
    (told,) = picture(status((unit("u", load(used_blocks=99, ttft_lost_s=0.4)),)), recent=ended(97)).models
    assert (told.suffers, told.why) == (False, "")


def test_fairness__models_are_served_unlike__is_told_as_index_and_shares() -> None:
    loads = (load("m", request_attainment=1.0, output_tokens_per_s=30.0), load("n", request_attainment=0.5))
    told = live_fleet(status((unit("u", *loads),), (model("m"), model("n"), model("o"))), LiveSelection(), {}, 0.0)
    assert told.jain_index == 1.5**2 / (2 * 1.25)
    assert [m.token_share for m in told.models] == [1.0, 0.0, 0.0]
    assert picture(status(())).jain_index is None


@pytest.mark.parametrize(
    ("running", "silent_s", "state"), [(0, 1.7, "ok"), (0, 3.0, "silent"), (2, 1.0, "ok"), (2, 1.7, "silent")]
)
def test_unit__has_said_nothing_for_a_while__is_silent_sooner_where_it_has_work(
    running: int, silent_s: float, state: str
) -> None:
    told = picture(status((unit("u", load(running=running), silent_s=silent_s),)))

    assert [u.state for u in told.units] == [state]


def test_units__more_than_are_told__come_with_those_in_trouble_first() -> None:
    units = [unit(f"u{i:03d}", load(), pool=f"p{i % 2}") for i in range(1000)]
    units[700] = unit("u700", load(), silent_s=5.0, pool="p0")
    units[800] = unit("u800", load(waiting=40), pool="p0")
    told = picture(status(tuple(units)))

    assert (told.num_units, told.matching, len(told.units)) == (1000, 1000, MAX_UNITS)
    assert [u.unit for u in told.units[:3]] == ["u700", "u800", "u000"]
    assert told.units[0].state == "silent"
    assert [(p.pool, p.units, p.silent, p.strained) for p in told.pools] == [("p0", 500, 1, 1), ("p1", 500, 0, 0)]
    assert len(msgspec.json.encode(told)) < 64 * 1024


def test_selection__pool_model_or_text__narrows_the_units() -> None:
    units = (unit("a1", load("m")), unit("b1", load("n"), pool="q"), unit("b2", load("m"), pool="q"))
    told = status(units, (model("m"), model("n")))
    for selection, found in (
        (LiveSelection(pool="q"), ["b1", "b2"]),
        (LiveSelection(model="m"), ["a1", "b2"]),
        (LiveSelection(find="b", model="n"), ["b1"]),
        (LiveSelection(find="nothing"), []),
    ):
        assert [u.unit for u in picture(told, selection).units] == found


def test_picture__nothing_but_time_has_passed__is_the_same() -> None:
    decision = PlacementDecision(kind="plan", reason="r", moves=("m",), seconds_ago=2.0)
    later = replace(decision, seconds_ago=2.5)
    before = live_fleet(status((unit(),), decisions=(decision,)), LiveSelection(), {}, 1000.0)
    after = live_fleet(status((unit(silent_s=0.4),), decisions=(later,)), LiveSelection(), {}, 1000.5)
    assert before == after


def test_history__requests_end__tells_what_became_of_them_since_somebody_looked() -> None:
    history = LiveHistory()

    def told(**totals: int) -> FleetStatus:
        return status((), (model(asked=asked(**totals)),))

    before = told(finished_total=100, in_time_total=50, ttft_met_total=90, tbt_met_total=60)
    after = told(finished_total=108, in_time_total=55, ttft_met_total=97, tbt_met_total=66, shed_total=2)
    nothing = {"m": RecentRequests()}
    found = {"m": RecentRequests(ended=10, in_time=5, first_late=1, gaps_late=2, shed=2)}

    assert history.recent_requests(before, 0.0) == nothing
    assert history.recent_requests(after, 10.0) == found
    assert found["m"].share_in_time == 0.5
    assert history.recent_requests(after, 100.0) == nothing  # of the last minute
    assert history.recent_requests(before, 101.0) == nothing  # a gateway has left
    assert nothing["m"].share_in_time is None


def test_history__somebody_looks_twice_a_second__keeps_one_sample_of_each() -> None:
    history = LiveHistory()
    history.add(picture(status(())), 50.0)
    history.add(picture(status(())), 50.4)
    assert [s.at_s for s in history.told()] == [50.0]


def test_added__two_gateways__sums_what_they_count() -> None:
    one, other = asked(waiting=3, oldest_wait_s=2.0, shed_total=1), asked(waiting=4, oldest_wait_s=1.0, shed_total=2)
    both = added(one, other)
    assert (both.waiting, both.oldest_wait_s, both.shed_total) == (7, 2.0, 3)


def test_plan_report__the_planner_would_move_a_model__says_what_that_gains_and_costs() -> None:
    def plan(**homes: tuple[str, ...]) -> Plan:
        placed = {u: tuple(ModelPlacement(model=m, quota_blocks=9) for m in models) for u, models in homes.items()}
        return Plan(units=tuple(UnitPlan(unit_id=u, models=models) for u, models in placed.items()))

    now = Appraisal(share_in_time=0.7, served_share={"m": 0.6, "n": 1.0}, asked_per_s={"m": 1.0, "n": 1.0})
    then = Appraisal(share_in_time=0.9, served_share={"m": 0.9, "n": 1.0}, asked_per_s={"m": 1.0, "n": 1.0})
    look = PlanLook(why="demand", plan=plan(u=("n",), v=("m", "n")), now=now, then=then)
    models = (model("m", weight_bytes=5, rate_per_s=1.0), model("n", asleep_on=("v",), weight_bytes=3))
    held = plan(u=("m", "n"))
    told = plan_report(status((unit("u"), unit("v")), models, plan=held, goal=held, look=look), 0.0)

    assert told.look is not None
    moves = [(m.kind, m.unit, m.model, m.load_bytes, round(m.gain, 3)) for m in told.look.moves]
    assert moves == [("drain", "u", "m", 0, 0.3), ("load", "v", "m", 5, 0.3), ("wake", "v", "n", 0, 0.0)]
    assert [(m.model, m.units, m.served_share) for m in told.models] == [("m", ("u",), 0.6), ("n", ("u",), 1.0)]
    assert told.units[0].goal == {"m": 9, "n": 9}
    assert told.units[0].look == {"n": 9}
