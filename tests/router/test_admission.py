"""Admission over made-up units, in a time that the tests tell."""

import math

import pytest
from fleet_values import ask, fleet, is_idle, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import Slo
from router.admission.admission import Admit, NoCapacity, Queue, Shed
from router.admission.learned_estimates import DrainRate, OutputLengths, WakeTimes
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits
from router.request_terms import Priority

FULL = model_load(quota_blocks=20, tokens_per_row=16)  # 320 tokens: three requests of 100


def scheduler(*units, max_waiting: int = 100, now_s: float = 0.0, **options) -> GatewayScheduler:
    made = GatewayScheduler(gateway_id="g", limits=GatewayLimits(max_queued=max_waiting))
    made.update_view(fleet(*units, **options), now_s)
    return made


def small(request_id: str, **changes):
    return ask(request_id, **{"prompt_tokens": 90, "max_tokens": 10, **changes})


def fill(made: GatewayScheduler, number: int = 2, **changes) -> list[str]:
    """Admits what the quota of FULL has room for."""
    names = [f"full-{i}" for i in range(number)]
    for name in names:
        assert isinstance(made.offer(small(name, **changes), 0.0), Admit)
    return names


def finish(made: GatewayScheduler, request_id: str) -> None:
    made.produced(request_id, 10, 0.0)
    made.end(request_id, 0.0, finished=True)


def outcomes(made: GatewayScheduler, now_s: float) -> dict[str, object]:
    return {a.request_id: outcome for a, outcome in made.pump(now_s)}


def test_offer__room_and_unit__admits_and_reserves() -> None:
    made = scheduler(unit("u"))
    decision = made.offer(ask(), 0.0)

    assert isinstance(decision, Admit)
    assert decision.choice.unit_id == "u"
    assert made.ledger.held_blocks("m") == -(-200 // 16)


def test_offer__blocks_are_promised__queues_until_one_ends() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    first, _ = fill(made)
    assert made.offer(small("late"), 0.0) == Queue()
    assert outcomes(made, 1.0) == {}

    finish(made, first)

    assert list(outcomes(made, 1.0)) == ["late"]
    assert made.ledger.held_blocks("m") <= 20


def test_offer__came_before_it_could_be_offered__is_due_by_when_it_came() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    first, _ = fill(made)
    made.offer(small("came-at-0.2"), 0.2)
    made.offer(small("was-held", came_s=0.1), 0.3)

    finish(made, first)

    assert list(outcomes(made, 0.4)) == ["was-held"]


def test_offer__came_before_it_could_be_offered__unit_is_told_what_is_left_of_its_target() -> None:
    made = scheduler(unit("u"))

    assert isinstance(made.offer(ask(slo=Slo(ttft_s=1.0, tbt_s=0.1), came_s=0.25), 0.5), Admit)

    assert made.slo_left("r") == Slo(ttft_s=0.75, tbt_s=0.1)


def test_offer__unit_is_busy_for_long__waits_until_its_prefills_are_nearly_done() -> None:
    busy = model_load(waiting=10, waiting_tokens=20_000)  # two seconds of prefill
    made = scheduler(unit("u", busy))
    assert made.offer(ask(slo=Slo(ttft_s=1.0, tbt_s=0.1)), 0.0) == Queue()
    made.pump(0.0)

    next_s = made.next_pump_s()

    assert next_s is not None
    assert 1.0 < next_s < 2.0
    assert outcomes(made, next_s - 0.1) == {}
    assert isinstance(outcomes(made, next_s)["r"], Admit)


@pytest.mark.parametrize(("priority", "low"), [(Priority.NORMAL, 0), (Priority.LOW, 1)])
def test_offer__no_unit__is_held_and_admitted_when_one_comes(priority: Priority, low: int) -> None:
    made = scheduler(unit("u", phase=ModelPhase.LOADING))
    assert made.offer(ask(deadline_s=30.0, priority=priority), 0.0) == Queue()
    asked = made.demand_report(0.0).models[0]
    assert (asked.held, asked.held_low) == (1, low)

    made.update_view(fleet(unit("u")), 4.0)

    assert isinstance(outcomes(made, 4.0)["r"], Admit)
    assert made.demand_report(4.0).models[0].held == 0


@pytest.mark.parametrize("has_token", [False, True])
def test_demand_report__requests_unit_is_lost_and_no_other_has_the_model__it_is_held_and_waits_ever_longer(
    has_token: bool,
) -> None:
    """Else its model may fall asleep, and nobody wakes it: no request comes."""
    made = scheduler(unit("u"))
    assert isinstance(made.offer(ask(), 0.0), Admit)
    if has_token:
        made.produced("r", 1, 0.5)
    made.update_view(fleet(), 1.0)
    made.left("r", 1.0)

    told = [made.demand_report(now_s).models[0] for now_s in (3.0, 4.0)]
    assert [asked.held for asked in told] == [1, 1]
    assert [asked.oldest_wait_s for asked in told] == [2.0, 3.0]  # a report that stays the same is not sent again

    made.update_view(fleet(unit("u2")), 5.0)
    choice = made.route("r", 5.0)
    assert choice is not None
    made.sent("r", choice, 5.0)
    asked = made.demand_report(6.0).models[0]
    assert (asked.held, asked.oldest_wait_s) == (0, 0.0)
    finish(made, "r")


def test_pump__deadline_of_a_held_request__is_no_capacity_of_a_queued_one_shed() -> None:
    cold = scheduler()
    cold.offer(ask(deadline_s=5.0), 0.0)
    busy = scheduler(unit("u", FULL, total_blocks=20))
    fill(busy)
    busy.offer(small("late", deadline_s=5.0), 0.0)

    assert isinstance(outcomes(cold, 5.0)["r"], NoCapacity)
    assert isinstance(outcomes(busy, 5.0)["late"], Shed)
    assert is_idle(cold)


def test_no_capacity__model_has_woken_before__retry_after_is_what_is_left() -> None:
    made = scheduler()
    made.offer(ask("first", deadline_s=100.0), 0.0)
    made.update_view(fleet(unit("u")), 20.0)  # it took 20 s
    made.pump(20.0)
    made.update_view(fleet(), 30.0)
    made.offer(ask("second", deadline_s=45.0), 40.0)

    assert outcomes(made, 45.0)["second"] == NoCapacity(retry_after_s=15)


def test_no_capacity__model_sleeps_in_host_memory__retry_after_is_the_copy_and_no_load_is_learnt_from_it() -> None:
    made = scheduler()
    made.offer(ask("read", deadline_s=100.0), 0.0)
    made.update_view(fleet(unit("u")), 20.0)  # it took 20 s
    made.pump(20.0)

    made.update_view(fleet(unit("u", wake_s=9.0), unit("v", wake_s=3.0)), 30.0)
    assert made.offer(ask("copied", deadline_s=41.0), 40.0) == Queue()
    made.update_view(fleet(unit("v", phase=ModelPhase.LOADING)), 40.5)  # on its way
    assert outcomes(made, 41.0)["copied"] == NoCapacity(retry_after_s=4)
    made.update_view(fleet(unit("v")), 43.0)
    made.update_view(fleet(), 50.0)
    made.offer(ask("read again", deadline_s=65.0), 60.0)

    assert outcomes(made, 65.0)["read again"] == NoCapacity(retry_after_s=15)


def test_queue__full_of_one_tenant__a_neighbour_takes_its_last_place() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20), max_waiting=6)
    fill(made, tenant="greedy")
    for i in range(4):
        assert made.offer(small(f"greedy-{i}", tenant="greedy"), 1.0) == Queue()

    assert isinstance(made.offer(small("one-more", tenant="greedy"), 1.0), Shed)
    assert made.offer(small("neighbour", tenant="quiet"), 1.0) == Queue()

    assert isinstance(outcomes(made, 1.0)["greedy-3"], Shed)
    assert made.admission.queues.of("m").turns.tenant_size("m", "quiet") == 1


def test_queue__tenants_differ_in_demand__are_served_alike() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    running = fill(made)
    for i in range(20):
        made.offer(small(f"greedy-{i}", tenant="greedy"), 0.1)
    for i in range(3):
        made.offer(small(f"quiet-{i}", tenant="quiet"), 0.2)
    order: list[str] = []
    for step in range(6):
        finish(made, running.pop(0))
        admitted = [name for name, outcome in outcomes(made, 0.3 + step).items() if isinstance(outcome, Admit)]
        order += admitted
        running += admitted

    assert sum(name.startswith("quiet") for name in order) == 3


def test_queue__higher_priority__goes_first_whoever_asks() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    running = fill(made)
    made.offer(small("normal"), 0.1)
    made.offer(small("high", priority=Priority.HIGH), 0.2)
    made.offer(small("low", priority=Priority.LOW), 0.0)
    order = []
    for _ in range(3):
        finish(made, running.pop(0))
        admitted = list(outcomes(made, 1.0))
        order += admitted
        running += admitted

    assert order == ["high", "normal", "low"]


def test_queue__same_tenant__earliest_first_token_is_due_first() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    running = fill(made)
    made.offer(small("patient", slo=Slo(ttft_s=50.0, tbt_s=0.1)), 0.1)
    made.offer(small("hurried", slo=Slo(ttft_s=5.0, tbt_s=0.1)), 0.2)
    finish(made, running[0])

    assert list(outcomes(made, 1.0)) == ["hurried"]


def test_offer__turn_comes_after_the_deadline__is_shed_at_once() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    running = fill(made)
    made.offer(small("waits"), 0.0)
    for second in range(1, 12):  # one request per second leaves the queue
        finish(made, running.pop(0))
        running += list(outcomes(made, float(second)))
        made.offer(small(f"next-{second}"), float(second))

    assert isinstance(made.offer(small("hurried", deadline_s=11.2), 11.0), Shed)
    assert made.offer(small("patient", deadline_s=60.0), 11.0) == Queue()


def test_offer__full_queue_and_no_time_for_the_newcomer__takes_nobodys_place() -> None:
    """Else whoever asks again and again for what nobody can give empties others' queues."""
    made = scheduler(unit("u", FULL, total_blocks=20), max_waiting=14)
    running = fill(made)
    for i in range(12):
        assert made.offer(small(f"greedy-{i}", tenant="greedy"), 0.0) == Queue()
    for step in range(1, 9):  # one leaves each second: that is how fast the queue moves
        finish(made, running.pop(0))
        running += [name for name, outcome in outcomes(made, float(step)).items() if isinstance(outcome, Admit)]
        assert made.offer(small(f"more-{step}", tenant="greedy"), float(step)) == Queue()

    assert isinstance(made.offer(small("hopeless", tenant="quiet", deadline_s=8.001), 8.0), Shed)
    assert outcomes(made, 8.0) == {}

    assert made.offer(small("patient", tenant="quiet"), 8.0) == Queue()
    assert [type(outcome) for outcome in outcomes(made, 8.0).values()] == [Shed]


def test_output_lengths__requests_for_one_token__teach_nothing_of_answers() -> None:
    made = scheduler(unit("u"))
    for i in range(100):  # embeddings, scores, or prompts' log-probabilities
        assert isinstance(made.offer(ask(f"one-{i}", max_tokens=1), float(i)), Admit)
        made.produced(f"one-{i}", 1, float(i))
        made.end(f"one-{i}", float(i), finished=True)

    assert made.admission.lengths.predicted_tokens("m", max_tokens=200) == 200


def test_withdraw__waiting_request__leaves_nothing() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    running = fill(made)
    made.offer(small("gone"), 0.0)
    made.withdraw("gone")
    for name in running:
        finish(made, name)

    assert outcomes(made, 1.0) == {}
    assert is_idle(made)


def test_models__share_a_unit__the_one_served_less_is_next() -> None:
    loads = (model_load("busy", waiting=1, waiting_tokens=9_000), model_load("rare"))
    made = scheduler(unit("u", *loads), models=("busy", "rare"))
    for i in range(5):
        made.offer(ask(f"busy-{i}", "busy", prompt_tokens=2000), 0.0)
    assert outcomes(made, 0.0) == {}
    made.offer(ask("rare-0", "rare", prompt_tokens=2000), 0.0)
    order = []
    now_s = 0.0
    while len(order) < 3:
        next_s = made.next_pump_s()
        assert next_s is not None
        now_s = max(next_s, now_s)
        order += list(outcomes(made, now_s))

    assert "rare-0" in order[:2]


@given(st.floats(0.1, 50), st.integers(1, 2000))
def test_drain_rate__steady_queue__is_found(per_s: float, number: int) -> None:
    drain = DrainRate()
    for i in range(number):
        drain.observe(i / per_s, queued=True, left=1)
    if drain.per_s is not None:
        assert drain.per_s >= per_s * 0.5
        assert drain.per_s <= per_s * (1 + 2 / per_s) + 2


def test_drain_rate__idle_time__does_not_count() -> None:
    drain = DrainRate()
    for i in range(100):
        drain.observe(i * 0.1, queued=True, left=1)
    busy = drain.per_s
    drain.observe(5000.0, queued=False)

    assert drain.per_s == busy


def test_output_lengths__learnt__bounded_by_what_is_asked() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.record("m", 40)

    assert lengths.predicted_tokens("m", max_tokens=1000) == 40
    assert lengths.predicted_tokens("m", max_tokens=10) == 10
    assert lengths.predicted_tokens("new", max_tokens=10**6) == 256


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_wake_times__any_past__what_is_left_is_positive(took_s: float, waited_s: float) -> None:
    wakes = WakeTimes()
    wakes.held("m", 0.0)
    wakes.ready("m", took_s)
    wakes.held("m", 2e4)

    assert wakes.left_s("m", 2e4 + waited_s) >= 0
    assert math.isfinite(wakes.left_s("m", 2e4 + waited_s))


def test_offer__blocks_are_held_by_what_gives_way__are_room_for_others_and_for_nothing_that_does() -> None:
    made = scheduler(unit("u", FULL, total_blocks=20))
    fill(made, priority=Priority.LOW)
    assert made.offer(small("low", priority=Priority.LOW), 0.0) == Queue()
    assert outcomes(made, 0.1) == {}
    assert made.offer(small("normal"), 0.2) == Queue(), "something waits: turns are for pump to tell"
    assert isinstance(outcomes(made, 0.2)["normal"], Admit)
    assert outcomes(made, 0.3) == {}
    for name in ("full-0", "full-1", "normal"):
        finish(made, name)
    assert isinstance(outcomes(made, 0.4)["low"], Admit)
    finish(made, "low")
    assert made.ledger.held_blocks("m") == 0


def test_demand_report__requests_with_targets_of_their_own__are_counted_by_them() -> None:
    made = scheduler(unit("u1", model_load()))
    for number, slo in enumerate(
        (Slo(ttft_s=1.0, tbt_s=0.1), Slo(ttft_s=1.0, tbt_s=0.02), Slo(ttft_s=5.0, tbt_s=0.02))
    ):
        made.offer(ask(f"r{number}", slo=slo), 0.0)

    (asked,) = made.demand_report(1.0).models
    assert asked.requests_total == 3
    assert [t.requests_total for t in asked.ttft_targets] == [1]
    assert [(0.9 * 0.02 < t.target_s <= 0.02, t.requests_total) for t in asked.tbt_targets] == [(True, 2)]
