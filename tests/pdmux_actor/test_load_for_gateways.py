from dataclasses import replace

from engine_rig import INFOS, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Arrival, AttachModel, RemoveModel


def test_load_for_gateways__while_a_request_runs__is_the_report_without_how_lanes_were_used() -> None:
    rig = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=400)))])
    while rig.executor.now() < 0.1:
        rig.loop.turn()
    rig.loop.act()
    whole, told = rig.scheduler.load_report(), rig.scheduler.load_for_gateways()

    assert whole.has_work
    assert whole.launches
    assert whole.decode_achieved_s > 0
    assert told == replace(
        whole,
        prefill_bubble_share=0.0,
        decode_bubble_share=0.0,
        decode_launches_at_once=0.0,
        decode_predicted_s=0.0,
        decode_achieved_s=0.0,
        decode_headroom=None,
        launches=(),
        steps=(),
    )


def test_load_report__model_leaves_and_comes_back_between_reports__its_rates_begin_anew():
    events = [
        (0.0, Arrival(make_request("x", "a", max_tokens=50))),
        (1.0, RemoveModel("a")),
        (1.0, AttachModel(INFOS["a"], 200)),
        (1.0, Arrival(make_request("y", "a", max_tokens=5))),
    ]
    engine = VirtualEngine(events, models="a")
    while engine.executor.now() < 0.9 and len(engine.tokens_of("x")) < 50:
        engine.loop.turn()
    (before,) = engine.scheduler.load_report().models
    engine.run()
    (after,) = engine.scheduler.load_report().models

    assert before.output_tokens_total == 50
    assert len(engine.tokens_of("y")) == 5
    assert after.output_tokens_total == 5
    assert after.output_tokens_per_s >= 0
    assert after.prompt_tokens_per_s >= 0
