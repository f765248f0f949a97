import itertools

import pytest
from scripted_engine import step, submitted

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Generate
from pdmux_actor.serving.token_stream import MERGE_S, DeltaPace


@pytest.mark.parametrize("step_s", [0.6 * MERGE_S, MERGE_S, 2 * MERGE_S, 0.1])
def test_delta_pace__steps_no_faster_than_deltas__hold_nothing(step_s: float) -> None:
    pace = DeltaPace()

    assert not any(pace.holds(number * step_s) for number in range(100))


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.0012, 0.0024])
def test_delta_pace__fast_steps__are_told_together_and_in_time(step_s: float) -> None:
    pace = DeltaPace()

    told_s = [number * step_s for number in range(1000) if not pace.holds(number * step_s)]

    gaps_s = [after - before for before, after in itertools.pairwise(told_s)]
    assert max(gaps_s) <= MERGE_S + 1e-9
    assert min(gaps_s[1:]) > MERGE_S - 2 * step_s  # none of them is told alone


async def test_unit__fast_steps__are_one_delta_with_all_their_tokens(leased, make_request, fake_engine, until) -> None:
    _, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    for text in "abcdefgh":
        fake_engine.emit(step(request_id, text))
    fake_engine.emit(step(request_id, "i", FinishReason.LENGTH))
    await peer.until_finished(1)

    assert peer.text(1) == "abcdefghi"
    assert peer.token_ids(1) == [ord(c) - 33 for c in "abcdefghi"]
    assert peer.deltas[1][0].text == "a", "the first token waits for no other"
    assert len(peer.deltas[1]) < 9


async def test_unit__no_step_follows_a_held_one__its_tokens_come_all_the_same(
    leased, make_request, fake_engine, until
) -> None:
    _, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    for text in "abc":
        fake_engine.emit(step(request_id, text))

    while 1 not in peer.deltas or peer.text(1) != "abc":
        assert await peer.next(timeout_s=10.0) is not None
