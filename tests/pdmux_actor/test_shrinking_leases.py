"""Sequences that a unit's KV quota does not admit, or does not admit any more: they are given back."""

import pytest
from engine_rig import INFOS, TOTAL_BLOCKS, VirtualEngine, make_request

from pdmux_actor.messages import FinishReason
from pdmux_actor.scheduling.events import Arrival, SetQuotas
from pdmux_actor.scheduling.policies.registry import POLICIES


def test_scheduler__prompt_longer_than_the_quota_but_not_the_context__is_given_back_for_another_unit():
    """Quotas change while models move; the same prompt fits elsewhere, or here a moment later."""
    requests = [(0.0, Arrival(make_request("r", prompt_tokens=200))), (1.0, SetQuotas({"a": TOTAL_BLOCKS}))]
    requests.append((2.0, Arrival(make_request("again", prompt_tokens=200, max_tokens=1))))

    engine = VirtualEngine(requests, quota_blocks=8).run()

    (given_back,), (finished,) = engine.ends_of("r"), engine.ends_of("again")
    assert given_back.finish is FinishReason.ABORT
    assert "KV quota" in given_back.error
    assert finished.finish is FinishReason.LENGTH


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("at_s", [0.0, 0.004, 0.1, 0.3])
def test_scheduler__lease_shrinks_below_a_running_sequence__gives_it_back_with_its_tokens(policy, at_s):
    """It was promised more: that it ended by its length would be untrue, and another unit can go on with it."""
    request = make_request("r", prompt_tokens=40, max_tokens=200)
    alone = VirtualEngine([(0.0, Arrival(request))], quota_blocks=TOTAL_BLOCKS).run().tokens_of("r")
    events = [(0.0, Arrival(request)), (at_s, SetQuotas({"a": 3 * INFOS["a"].geometry.blocks_per_row}))]

    engine = VirtualEngine(events, policy=policy, quota_blocks=TOTAL_BLOCKS).run()

    (end,) = engine.ends_of("r")
    told = engine.tokens_of("r")
    assert end.finish is FinishReason.ABORT
    assert "KV quota" in end.error
    assert len(told) < len(alone) == 200
    assert told == alone[: len(told)]
