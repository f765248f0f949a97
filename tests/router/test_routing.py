"""Which unit takes a request. Tables are made of views, as in a gateway."""

from collections import Counter
from dataclasses import replace

from fleet_values import ask, fleet, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import Slo
from router.routing.prefix_index import BLOCK_TOKENS, PrefixIndex, prefix_names
from router.routing.routing import RoutingHints, UnitChoice, choose_unit
from router.routing.routing_table import RoutingTable, UnreportedLoad

UNTOLD = {"prefill_s_per_token": 0.0, "prefill_base_s": 0.0}


def choice_of(*units, request=None, now_s: float = 0.0, sent=(), **hints) -> UnitChoice | None:
    """`sent` are names of units that this gateway has sent a request to since."""
    table = RoutingTable.of(fleet(*units), 0.0)
    own = UnreportedLoad(table)
    for i, unit_id in enumerate(sent):
        own.sent(f"sent-{i}", unit_id, prefill_s=0.02, now_s=0.0)
    return choose_unit(table, request or ask(), own, now_s, stale_after_s=5.0, hints=RoutingHints(**hints))


def chosen(*units, **options) -> str | None:
    choice = choice_of(*units, **options)
    return None if choice is None else choice.unit_id


def test_choose__backlogs_differ__earliest_first_token_wins() -> None:
    behind = unit("a", model_load(waiting=3, waiting_tokens=5000))
    idle = unit("b", model_load(running=20))

    choice = choice_of(behind, idle)

    assert choice is not None
    assert (choice.unit_id, choice.reason, choice.wait_s) == ("b", "predicted", 0.0)
    assert abs(choice.predicted_ttft_s - 0.02) < 1e-9


def test_choose__other_model_keeps_the_lane_busy__counts_too() -> None:
    shared = unit("a", model_load(), model_load("other", waiting=3, waiting_tokens=5000))

    assert chosen(shared, unit("b", model_load(running=5))) == "b"


def test_choose__time_passes_without_news__the_backlog_is_worked_off() -> None:
    behind = unit("a", model_load(waiting=1, waiting_tokens=9990))
    early, late = (choice_of(behind, now_s=now_s) for now_s in (0.0, 0.5))

    assert early is not None
    assert late is not None
    assert early.wait_s - late.wait_s == 0.5
    assert choice_of(behind, now_s=3.0).wait_s == 0.0


def test_choose__own_requests_since_the_report__count() -> None:
    assert chosen(unit("a"), unit("b", model_load(running=1)), sent=["a"] * 3) == "b"


def test_choose__equal_waits__the_less_loaded_per_gpu_wins() -> None:
    assert chosen(unit("a", model_load(running=9)), unit("b", model_load(running=3))) == "b"
    assert chosen(unit("a", model_load(running=9)), unit("b", model_load(running=12), gpus=4)) == "b"


def test_choose__model_not_ready_or_unknown__is_none() -> None:
    units = (unit("a", phase=ModelPhase.LOADING), unit("b", phase=ModelPhase.DRAINING))
    assert chosen(*units) is None
    assert chosen(unit("a"), request=ask(model="other")) is None


def test_choose__context_too_short_or_avoided__is_left_out() -> None:
    long = ask(prompt_tokens=90, max_tokens=11)
    assert chosen(unit("a", max_model_len=100), unit("b", model_load(running=9)), request=long) == "b"
    assert chosen(unit("a", max_model_len=100), request=long) is None
    rest = replace(long, fills_context=True)
    assert chosen(unit("a", max_model_len=100), unit("b", max_model_len=99), request=rest) == "a"
    assert chosen(unit("a", max_model_len=90), request=rest) is None
    assert chosen(unit("a"), unit("b", model_load(running=9)), avoid={"a"}) == "b"
    assert chosen(unit("a"), avoid={"a"}) is None


def test_choose__constrained__only_where_outputs_follow_a_schema() -> None:
    constrained = ask(constrained=True)
    assert chosen(unit("a"), unit("b", model_load(running=9), constrains=True), request=constrained) == "b"
    assert chosen(unit("a"), request=constrained) is None


def test_choose__one_report_is_stale__taken_only_when_the_others_would_miss_the_target() -> None:
    silent = unit("a", age_s=60)
    tight = ask(slo=Slo(ttft_s=0.5, tbt_s=0.1))

    assert chosen(silent, unit("b", model_load(waiting=1, waiting_tokens=3000)), request=tight) == "b"
    assert chosen(silent, unit("b", model_load(waiting=9, waiting_tokens=30_000)), request=tight) == "a"


def test_choose__quota_used_up__other_unit_first_but_never_nobody() -> None:
    crowded = unit("a", model_load(used_blocks=1000))
    assert chosen(crowded, unit("b", model_load(waiting=1, waiting_tokens=3000))) == "b"
    assert chosen(crowded) == "a"


def test_choose__all_reports_stale__last_good_weights_with_some_exploration() -> None:
    good = [unit(f"good-{i}", age_s=60) for i in range(4)]
    slow = [unit(f"slow-{i}", model_load(waiting=9, waiting_tokens=50_000), age_s=60) for i in range(4)]
    picks = Counter()
    for i in range(2000):
        choice = choice_of(*good, *slow, request=ask(f"r-{i}"))
        assert choice is not None
        assert choice.reason == "stale"
        picks[choice.unit_id] += 1

    assert len(picks) == 8
    assert sum(n for name, n in picks.items() if name.startswith("good")) > 0.75 * 2000


def test_choose__stale_for_long__own_requests_level_the_load() -> None:
    table = RoutingTable.of(fleet(*(unit(f"u{i}", age_s=60) for i in range(5))), 0.0)
    own = UnreportedLoad(table)
    for i in range(200):
        choice = choose_unit(table, ask(f"r{i}"), own, 1000.0, stale_after_s=5.0)
        assert choice is not None
        own.sent(f"r{i}", choice.unit_id, prefill_s=0.0, now_s=1000.0)

    counts = [own.count(f"u{i}") for i in range(5)]
    assert max(counts) - min(counts) < 20


def test_choose__no_predictions__power_of_two_prefers_the_less_loaded() -> None:
    units = [unit(f"u{i}", model_load(running=i, **UNTOLD)) for i in range(10)]
    picks = Counter(choice_of(*units, request=ask(f"r{i}")).unit_id for i in range(500))

    assert choice_of(*units).reason == "power_of_two"
    assert picks["u0"] > picks["u8"]
    assert "u9" not in picks
    assert len(picks) >= 8


def test_choose__one_unit_has_not_told_yet__is_taken_for_an_average_one() -> None:
    fresh = unit("new", model_load(**UNTOLD))
    choice = choice_of(unit("a", model_load(waiting=5, waiting_tokens=9000)), fresh)

    assert choice is not None
    assert (choice.unit_id, choice.reason) == ("new", "predicted")


def test_choose__equals__gateways_and_requests_spread_and_each_is_deterministic() -> None:
    units = [unit(f"u{i}") for i in range(8)]
    assert len({chosen(*units, salt=f"gateway-{i}") for i in range(40)}) > 3
    assert len({chosen(*units, request=ask(f"r{i}")) for i in range(40)}) > 3
    assert chosen(*units, salt="g") == chosen(*units, salt="g")


def test_choose__cached_prefix__wins_until_its_unit_is_too_busy() -> None:
    request = ask(prompt_tokens=2000)
    matched = {"a": 1900}
    warm = choice_of(unit("a", model_load(running=4)), unit("b"), request=request, matched_tokens=matched)

    assert warm is not None
    assert (warm.unit_id, warm.prefix_tokens) == ("a", 1900)
    assert abs(warm.prefill_s - 0.02) < 1e-9
    busy = unit("a", model_load(waiting=5, waiting_tokens=20_000))
    assert chosen(busy, unit("b"), request=request, matched_tokens=matched) == "b"


candidate = st.builds(
    lambda name, running, waiting, age_s, gpus, phase: unit(
        str(name),
        model_load(running=running, waiting=waiting > 0, waiting_tokens=waiting),
        age_s=age_s,
        gpus=gpus,
        phase=phase,
    ),
    st.uuids(),
    st.integers(0, 50),
    st.integers(0, 30_000),
    st.floats(0, 20),
    st.integers(1, 8),
    st.sampled_from(list(ModelPhase)),
)


@given(st.lists(candidate, max_size=8), st.text(max_size=4), st.data())
def test_choose__any_view__is_ready_and_fresh_if_that_meets_the_target(units, salt, data) -> None:
    ready = {u.report.unit_id: u for u in units if u.report.models[0].phase is ModelPhase.READY}
    avoid = data.draw(st.sets(st.sampled_from(sorted(ready)))) if ready else set()
    choice = choice_of(*units, salt=salt, avoid=avoid)

    assert (choice is None) == (not ready.keys() - avoid)
    if choice is not None:
        assert choice.unit_id in ready.keys() - avoid
        assert choice.wait_s >= 0
        assert choice.prefill_s > 0
        fresh = [i for i in ready.keys() - avoid if ready[i].age_s <= 5.0]
        assert (choice.reason == "stale") == (not fresh)


@given(st.lists(candidate, min_size=1, max_size=6))
def test_choose__a_burst__never_piles_on_one_unit_while_another_would_be_sooner(units) -> None:
    from dataclasses import replace

    ready = [replace(u, age_s=0.0) for u in units if u.report.models[0].phase is ModelPhase.READY]
    table = RoutingTable.of(fleet(*ready), 0.0)
    own = UnreportedLoad(table)
    for i in range(60 if ready else 0):
        waits = {u: max(0.0, own.free_at_s[row]) for u, row in table.row.items()}
        choice = choose_unit(table, ask(f"r{i}", slo=Slo(ttft_s=0.0, tbt_s=1.0)), own, 0.0, stale_after_s=5.0)
        assert choice is not None
        loads = own.requests / table.num_gpus
        slack_s = 0.02 * 0.05 * (loads.max() - loads.min()) + 0.05 * (min(waits.values()) + 0.02 * (2 + loads.max()))
        assert choice.wait_s <= min(waits.values()) + slack_s + 1e-9
        own.sent(f"r{i}", choice.unit_id, prefill_s=choice.prefill_s, now_s=0.0)


@given(st.data())
def test_own_load__requests_come_and_go__rebase_agrees_with_a_fresh_count(data) -> None:
    names = ["a", "b", "c"]
    table = RoutingTable.of(fleet(*(unit(n) for n in names)), 0.0)
    own = UnreportedLoad(table)
    alive: dict[str, str] = {}
    for i in range(data.draw(st.integers(0, 40))):
        if alive and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(alive)))
            own.left(gone, i * 0.1)
            del alive[gone]
        else:
            alive[f"r{i}"] = data.draw(st.sampled_from(names))
            own.sent(f"r{i}", alive[f"r{i}"], prefill_s=0.01, now_s=i * 0.1)
    kept = data.draw(st.sets(st.sampled_from(names)))
    own.rebase(RoutingTable.of(fleet(*(unit(n, age_s=0.0) for n in sorted(kept))), 100.0))

    assert len(own) == len(alive)
    counts = Counter(alive.values())
    assert {n: own.count(n) for n in names} == {n: counts[n] for n in names}
    assert [own.requests[i] for i, _ in enumerate(sorted(kept))] == [counts[n] for n in sorted(kept)]


def test_own_load__first_token__what_was_before_it_is_done() -> None:
    table = RoutingTable.of(fleet(unit("a", model_load(waiting=9, waiting_tokens=50_000))), 0.0)
    own = UnreportedLoad(table)
    for i in range(3):
        own.sent(f"r{i}", "a", prefill_s=0.1, now_s=0.0)
    own.first_token("r0", 0.5)
    after_first = own.free_at_s[0]
    own.first_token("r1", 0.6)
    own.first_token("r1", 0.6)

    assert abs(after_first - 0.7) < 1e-9
    assert abs(own.free_at_s[0] - 0.7) < 1e-9
    own.left("r1", 0.6)
    own.rebase(RoutingTable.of(fleet(unit("a", age_s=2.0)), 1.0))
    assert abs(own.free_at_s[0] - 0.7) < 1e-9, "only the third is left, and other gateways have nothing there"
    assert own.requests[0] == 2


def test_own_load__first_token_of_a_prompt_computed_elsewhere__tells_nothing_of_what_waits_there() -> None:
    own = UnreportedLoad(RoutingTable.of(fleet(unit("a", model_load(waiting=9, waiting_tokens=50_000))), 0.0))
    before_s = own.free_at_s[0]
    own.sent("r", "a", prefill_s=0.0, now_s=0.0)
    own.first_token("r", 0.1)

    assert before_s > 4.0
    assert own.free_at_s[0] == before_s


def test_prefix_index__full__forgets_ends_before_starts() -> None:
    index = PrefixIndex(max_entries=8)
    old, new = prefix_names("m", range(10 * BLOCK_TOKENS)), prefix_names("m", [7] * BLOCK_TOKENS)
    index.record(old, "a", model="m", conversation="", tokens=10 * BLOCK_TOKENS)
    index.record(new, "b", model="m", conversation="", tokens=BLOCK_TOKENS)

    assert index.matched_tokens(old, model="m", conversation="", tokens=640) == {"a": 7 * BLOCK_TOKENS}
    assert index.matched_tokens(new, model="m", conversation="", tokens=64) == {"b": BLOCK_TOKENS}


def test_prefix_index__second_turn__finds_the_unit_of_the_first() -> None:
    index = PrefixIndex()
    first, second = list(range(300)), list(range(300)) + [7] * 200
    index.record(prefix_names("m", first), "a", model="m", conversation="", tokens=300)

    matched = index.matched_tokens(prefix_names("m", second), model="m", conversation="", tokens=500)

    assert matched == {"a": 256}
    assert index.matched_tokens(prefix_names("n", second), model="n", conversation="", tokens=500) == {}


def test_prefix_index__salts__match_their_own_only():
    index = PrefixIndex()
    tokens = range(2 * BLOCK_TOKENS)
    index.record(prefix_names("m", tokens, "x"), "a", model="m", conversation="", tokens=128)
    matched = {
        salt: index.matched_tokens(prefix_names("m", tokens, salt), model="m", conversation="", tokens=200)
        for salt in ("", "x", "y")
    }
    assert matched == {"": {}, "x": {"a": 128}, "y": {}}


def test_prefix_index__named_conversation__counts_to_its_last_token() -> None:
    index = PrefixIndex()
    index.record((), "a", model="m", conversation="c", tokens=50)

    assert index.matched_tokens((), model="m", conversation="c", tokens=80) == {"a": 50}
    assert index.matched_tokens((), model="m", conversation="c", tokens=50) == {"a": 49}
    assert index.matched_tokens((), model="n", conversation="c", tokens=80) == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc")), max_size=60), st.sets(st.sampled_from("abc")))
def test_prefix_index__any_use__is_bounded_and_knows_no_gone_unit(uses, alive) -> None:
    index = PrefixIndex(max_entries=16)
    for start, unit_id in uses:
        names = prefix_names("m", range(start, start + 400))
        index.record(names, unit_id, model="m", conversation=str(start), tokens=400)
        assert len(index) <= 16
    index.forget_units_but(alive)

    for start in range(6):
        names = prefix_names("m", range(start, start + 400))
        matched = index.matched_tokens(names, model="m", conversation=str(start), tokens=400)
        assert matched.keys() <= alive
