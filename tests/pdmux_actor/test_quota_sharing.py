"""Borrowing idle blocks, giving them back, and quotas that follow use."""

from dataclasses import replace

import pytest
from engine_rig import INFOS, PLAIN, TOTAL_BLOCKS, LinearLatency, VirtualEngine, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmux_actor.messages import FinishReason
from pdmux_actor.model_info import longest_sequence_tokens
from pdmux_actor.scheduling.events import Arrival, RemoveModel, SetQuotas
from pdmux_actor.scheduling.policies.registry import POLICIES

ADAPTING = replace(PLAIN, adapt_quotas=True, quota_period_s=0.1)
LENDING = replace(PLAIN, kv_lendable_share=1.0)


def burst(model, count, *, prompt_tokens=60, max_tokens=60, at_s=0.0):
    return [
        (at_s, Arrival(make_request(f"{model}{i}", model, prompt_tokens, max_tokens, first=i))) for i in range(count)
    ]


def most_used_blocks(engine, model):
    """Runs the engine and returns the most blocks that the model held."""
    most = 0
    while not engine.is_over:
        engine.loop.turn()
        engine.scheduler.check_integrity()
        loads = {m.model: m for m in engine.scheduler.load_for_gateways().models}
        most = max(most, loads[model].used_blocks)
    engine.run()
    return most


def test_borrowing__neighbour_is_idle__model_exceeds_its_quota():
    arrivals = burst("a", 8)
    without = VirtualEngine(arrivals, models="ab", quota_blocks=200, settings=PLAIN)
    lent = VirtualEngine(arrivals, models="ab", quota_blocks=200, settings=LENDING)

    assert most_used_blocks(without, "a") <= 200
    assert most_used_blocks(lent, "a") > 200
    assert lent.executor.now() < without.executor.now(), "more sequences at a time end sooner"


def test_borrowing__lender_wants_its_blocks__gets_them_and_nobody_is_lost():
    arrivals = [*burst("a", 12), *burst("b", 3, at_s=0.3)]
    engine = VirtualEngine(arrivals, models="ab", quota_blocks=300, settings=LENDING)

    engine.run()

    loads = {m.model: m for m in engine.scheduler.load_report().models}
    assert loads["a"].preemptions_total > 0
    assert loads["b"].preemptions_total == 0
    for _, arrival in arrivals:
        assert len(engine.tokens_of(arrival.request.request_id)) == 60
        assert len(engine.ends_of(arrival.request.request_id)) == 1


def test_borrowing__lender_prompt__waits_a_step_not_a_borrowers_generation():
    arrivals = [*burst("a", 12, max_tokens=300), *burst("b", 1, max_tokens=2, at_s=0.5)]

    def first_token_s(settings):
        engine = VirtualEngine(arrivals, models="ab", quota_blocks=300, settings=settings).run()
        return next(t for t, e in zip(engine.event_times_s, engine.token_events, strict=True) if e.request_id == "b0")

    assert first_token_s(LENDING) <= first_token_s(PLAIN) + 0.1


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_borrowing__batch_between_two_slices_holds_what_decode_lacks__goes_on(policy):
    """Its blocks come back when it has ended, and not before: a lender whose next token is late already has no time
    for it.
    """
    lending = replace(LENDING, kv_watermark=0.0)
    prompts = [
        make_request(f"b{i}", "b", tokens, 2, first=i, ttft_s=50.0, tbt_s=0.1) for i, tokens in ((1, 380), (2, 367))
    ]
    lender = make_request("a", "a", 17, 60, first=3, ttft_s=9.0, tbt_s=0.1)
    events = [(0.0, Arrival(lender)), *((0.06, Arrival(r)) for r in prompts)]
    engine = VirtualEngine(
        events, policy=policy, models="ab", quota_blocks=300, settings=lending, latency=LinearLatency(0.0)
    )
    engine.run(max_turns=1000)

    assert [len(engine.tokens_of(r.request_id)) for r in (lender, *prompts)] == [60, 2, 2]


def test_adaptive_quotas__one_model_starves_beside_an_idle_one__quota_moves_down_to_the_floor():
    arrivals = burst("a", 30, max_tokens=100)
    engine = VirtualEngine(arrivals, models=("a", "short"), quota_blocks=300, settings=ADAPTING)
    quotas = []
    while not engine.is_over:
        engine.loop.turn()
        quotas.append(tuple(m.quota_blocks for m in engine.scheduler.load_for_gateways().models))
    engine.run()

    longest_rows = 64 // INFOS["short"].geometry.tokens_per_row
    floor_blocks = longest_rows * INFOS["short"].geometry.blocks_per_row
    assert {sum(pair) for pair in quotas[1:]} == {600}, "quota is moved, never made"
    assert floor_blocks <= quotas[-1][1] < 150
    fixed = VirtualEngine(arrivals, models=("a", "short"), quota_blocks=300, settings=PLAIN).run()
    assert engine.executor.now() < fixed.executor.now()


def test_adaptive_quotas__both_use_theirs__nothing_moves():
    adapting = replace(PLAIN, adapt_quotas=True, quota_period_s=0.05)
    engine = VirtualEngine(
        [*burst("a", 10, max_tokens=40), *burst("c", 10, max_tokens=40)],
        models="ac",
        quota_blocks=TOTAL_BLOCKS // 2,
        settings=adapting,
    )
    for _ in range(200):
        engine.loop.turn()

    quotas = {m.model: m.quota_blocks for m in engine.scheduler.load_report().models}
    assert sum(quotas.values()) == TOTAL_BLOCKS


def quotas_of(engine):
    return {m.model: m.quota_blocks for m in engine.scheduler.load_for_gateways().models}


def test_adaptive_quotas__lease_is_raised_later__a_prompt_that_it_admits_is_served():
    """The model came with a small lease; what it has promised since is what the newest lease admits."""
    long = make_request("long", "b", prompt_tokens=390, max_tokens=2)
    events = [
        (0.0, SetQuotas({"a": 100, "b": 3})),
        *burst("a", 40, max_tokens=100),
        (0.3, SetQuotas({"a": 300, "b": 300})),
        (3.0, Arrival(long)),
    ]
    engine = VirtualEngine(events, models="ab", quota_blocks=3, settings=ADAPTING).run()

    assert [e.finish for e in engine.ends_of("long")] == [FinishReason.LENGTH]
    assert len(engine.tokens_of("long")) == 2


def test_adaptive_quotas__giver_is_in_need_again__gets_its_own_back_from_a_model_that_uses_it():
    events = [
        (0.0, SetQuotas({"a": 300, "short": 300})),
        *burst("a", 80, max_tokens=100),
        *burst("short", 60, prompt_tokens=30, max_tokens=30, at_s=2.0),
    ]
    engine = VirtualEngine(events, models=("a", "short"), quota_blocks=300, settings=ADAPTING)
    seen = []
    while not engine.is_over:
        engine.loop.turn()
        seen.append((engine.executor.now(), quotas_of(engine)))
    engine.run()

    before = next(quotas for now_s, quotas in reversed(seen) if now_s < 2.0)
    assert before["short"] < 150
    assert max(quotas["short"] for now_s, quotas in seen if 2.0 < now_s < 3.0) >= 300


def test_adaptive_quotas__receiver_leaves__the_giver_has_its_lease_again():
    events = [*burst("a", 30, max_tokens=100), (1.0, RemoveModel("a")), *burst("short", 1, prompt_tokens=9, at_s=1.5)]
    engine = VirtualEngine(events, models=("a", "short"), quota_blocks=300, settings=ADAPTING)
    least = 300
    while not engine.is_over:
        engine.loop.turn()
        least = min(least, quotas_of(engine)["short"])
    engine.run()

    assert least < 300, "some of it had moved"
    assert quotas_of(engine) == {"short": 300}


_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("burst"),
            st.sampled_from(["a", "b", "short"]),
            st.integers(1, 500),
            st.integers(1, 60),
            st.integers(1, 12),
        ),
        st.tuples(st.just("lease"), st.sampled_from([(200, 200, 200), (560, 20, 20), (40, 500, 60), (96, 3, 3)])),
        st.tuples(st.just("lease of one"), st.sampled_from(["a", "b", "short"]), st.integers(0, 200)),
        st.tuples(st.just("remove"), st.just("short")),
    ),
    min_size=2,
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(steps=_steps, gap_s=st.sampled_from([0.01, 0.1, 0.5]), period_s=st.sampled_from([0.02, 0.2]))
def test_adaptive_quotas__any_transfers_and_leases__what_a_lease_admits_is_never_refused(steps, gap_s, period_s):
    models = ("a", "b", "short")
    events, requests = [], []
    for number, step in enumerate(steps):
        at_s = gap_s * number
        match step:
            case ("burst", model, prompt, output, count):
                some = [make_request(f"r{len(requests) + i}", model, prompt, output, first=i) for i in range(count)]
                requests += some
                events += [(at_s, Arrival(request)) for request in some]
            case ("lease", blocks):
                events.append((at_s, SetQuotas(dict(zip(models, blocks, strict=True)))))
            case ("lease of one", model, blocks):
                events.append((at_s, SetQuotas({model: blocks})))
            case ("remove", model):
                events.append((at_s, RemoveModel(model)))
    adapting = replace(ADAPTING, quota_period_s=period_s, kv_lendable_share=0.5, prefix_cache=True)
    engine = VirtualEngine(events, models=models, settings=adapting)
    while not engine.is_over:
        engine.loop.turn()
        _check_promises(engine)
    engine.run()

    for request in requests:
        (end,) = engine.ends_of(request.request_id)
        promised = [_promised(model, leases) for model, leases in _leases_since_arrival(events, request)]
        if end.finish is FinishReason.ABORT:
            assert len(request.prompt_token_ids) + len(engine.tokens_of(request.request_id)) >= min(promised)


def _check_promises(engine):
    """Quotas are the leases, moved about; no model holds less than its longest promised sequence takes."""
    queues = engine.scheduler._queues.values()
    assert sum(q.pool.quota_blocks(q.model) for q in queues) == sum(q.pool.leased_blocks(q.model) for q in queues)
    for queue in queues:
        leased_blocks = queue.pool.leased_blocks(queue.model)
        assert queue.max_len == _promised(queue.model, leased_blocks)
        held_rows = queue.pool.quota_blocks(queue.model) // queue.info.geometry.blocks_per_row
        assert held_rows * queue.info.geometry.tokens_per_row >= queue.max_len


def _promised(model, leased_blocks):
    return longest_sequence_tokens(INFOS[model], leased_blocks)


def _leases_since_arrival(events, request):
    """The lease at its arrival and every later one of its model."""
    leased, has_come = 200, False
    for _, event in events:
        match event:
            case SetQuotas(quota_blocks=quotas):
                leased = quotas.get(request.model, leased)
            case Arrival(request=other) if other is request:
                has_come = True
        if has_come:
            yield request.model, leased


def test_load_report__models_hold_unequal_parts_of_their_quotas__says_the_gap():
    engine = VirtualEngine(
        [*burst("a", 4, max_tokens=50), *burst("b", 1, max_tokens=50)], models="ab", quota_blocks=300
    )
    for _ in range(30):
        engine.loop.turn()

    report = engine.scheduler.load_report()
    ratios = [m.used_blocks / m.quota_blocks for m in report.models]
    assert report.fairness_gap == max(ratios) - min(ratios) > 0
