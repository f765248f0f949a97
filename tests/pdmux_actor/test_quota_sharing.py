"""Borrowing idle blocks, giving them back, and quotas that follow use."""

from dataclasses import replace

from engine_rig import INFOS, PLAIN, TOTAL_BLOCKS, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Arrival

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
        loads = {m.model: m for m in engine.scheduler.load_report().models}
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


def test_adaptive_quotas__one_model_starves_beside_an_idle_one__quota_moves_down_to_the_floor():
    adapting = replace(PLAIN, adapt_quotas=True, quota_period_s=0.1)
    arrivals = burst("a", 30, max_tokens=100)
    engine = VirtualEngine(arrivals, models=("a", "short"), quota_blocks=300, settings=adapting)
    quotas = []
    while not engine.is_over:
        engine.loop.turn()
        quotas.append(tuple(m.quota_blocks for m in engine.scheduler.load_report().models))
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


def test_load_report__models_hold_unequal_parts_of_their_quotas__says_the_gap():
    engine = VirtualEngine(
        [*burst("a", 4, max_tokens=50), *burst("b", 1, max_tokens=50)], models="ab", quota_blocks=300
    )
    for _ in range(30):
        engine.loop.turn()

    report = engine.scheduler.load_report()
    ratios = [m.used_blocks / m.quota_blocks for m in report.models]
    assert report.fairness_gap == max(ratios) - min(ratios) > 0
