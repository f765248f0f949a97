from dataclasses import replace

from engine_rig import VirtualEngine, make_request

from pdmux_actor.scheduling.events import Arrival


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
