"""What `mux` chose for decode is kept for as long as nothing speaks for another choice."""

from dataclasses import replace

import pytest
from engine_rig import PLAIN, LinearLatency, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Abort, Arrival
from pdmux_actor.scheduling.policies import decode_lanes, mux
from pdmux_actor.scheduling.policies.prefill_options import PrefillOptions

SLOW = 0.1  # a target that leaves decode beside a prompt several shares
LONG_ANSWERS = [
    (0.0, Arrival(make_request(f"f{i}", model, max_tokens=150, tbt_s=SLOW, first=i + 9)))
    for i, model in enumerate("aabb")
]


def run(events, *, latency=None, models="ab", **settings):
    """Returns the engine, and when it compared all shares: for decode alone, beside a prompt, for a division."""
    compared = {"alone": [], "beside": [], "division": []}
    engine = VirtualEngine(
        events,
        models=models,
        quota_blocks=300 if len(models) > 1 else 600,
        num_sms=8,
        settings=replace(PLAIN, **settings),
        latency=latency,
    )

    def noted(name, function):
        def note(*args, **kwargs):
            compared[name].append(engine.executor.now())
            return function(*args, **kwargs)

        return note

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mux, "_choose_share", noted("alone", mux._choose_share))
        patch.setattr(PrefillOptions, "best", noted("beside", PrefillOptions.best))
        patch.setattr(decode_lanes, "divide", noted("division", decode_lanes.divide))
        return engine.run(), compared


@pytest.mark.parametrize("lanes", [1, 2])
def test_decode_alone__nothing_comes_or_goes__shares_are_compared_for_few_of_its_steps(lanes):
    engine, compared = run(LONG_ANSWERS, decode_lanes=lanes)

    assert engine.scheduler.load_report().steps_total > 100
    assert 0 < len(compared["alone"]) < 15
    assert (0 < len(compared["division"]) < 15) == (lanes > 1)


def test_decode_alone__a_sequence_goes__shares_are_compared_again():
    gone_s = 0.4123
    _, compared = run([*LONG_ANSWERS, (gone_s, Abort("f0"))])

    assert [time_s for time_s in compared["alone"] if gone_s - 0.1 < time_s < gone_s] == []
    assert [time_s for time_s in compared["alone"] if gone_s <= time_s < gone_s + 0.05]


class SlowerAsItGrows(LinearLatency):
    def decode_s(self, spec, context_tokens, sms):
        return 0.004 + 0.00002 * sum(context_tokens)


def test_decode_alone__steps_become_slower__shares_are_compared_again_and_again():
    """From 4.2 to 7.2 ms a step takes a fiftieth longer 27 times, and is looked at once in four steps."""
    _, steady = run(LONG_ANSWERS[:1], models="a")
    _, slower = run(LONG_ANSWERS[:1], models="a", latency=SlowerAsItGrows())

    assert len(steady["alone"]) < 5
    assert 15 < len(slower["alone"]) <= 30


PROMPT = make_request("p", prompt_tokens=200, max_tokens=2, tbt_s=SLOW)
SHORTER = [(0.0, Arrival(make_request(f"f{i}", max_tokens=100, tbt_s=SLOW, first=i + 9))) for i in range(2)]
CAME_S = 0.2


def slices_of(engine, request_id):
    return [d for d in engine.scheduler.log.decisions() if request_id in d.request_ids and d.kind == "prefill"]


def test_prompt_in_slices__nothing_else_changes__its_way_is_chosen_before_and_with_its_first_slice():
    engine, compared = run([*SHORTER, (CAME_S, Arrival(PROMPT))], models="a", latency=LinearLatency(0.05))

    first, second, *others = slices_of(engine, "p")
    assert others
    assert compared["beside"] == [first.now_s, second.now_s]


def test_prompt_in_slices__another_one_comes__its_way_is_chosen_again():
    another_s = CAME_S + 0.015
    events = [*SHORTER, (CAME_S, Arrival(PROMPT)), (another_s, Arrival(replace(PROMPT, request_id="q")))]
    _, compared = run(events, models="a", latency=LinearLatency(0.05))

    assert [t for t in compared["beside"] if another_s <= t < another_s + 0.02]
