"""What nodes bear is learned from requests in time, and what waits asks for more before any is late."""

from dataclasses import replace

import pytest
from placement_cases import make_model, make_spec

from placement.scaling.capacity_calibration import CapacityCalibration
from placement.scaling.leading_signals import LeadingSignals, QueueSignal
from traces.timeliness import SloTarget


def settled(calibration: CapacityCalibration, in_time: int, now_s: float, *, has_slack: bool = True) -> float:
    calibration.note(200, in_time)
    calibration.settle(0.95, has_slack=has_slack, every_s=60.0, now_s=now_s)
    return calibration.factor


def test_calibration__target_is_kept_for_a_while__nodes_are_taken_to_bear_a_little_more() -> None:
    calibration = CapacityCalibration()
    calibration.restart(0.0)

    assert settled(calibration, 200, 30.0) == 1.0  # too soon
    assert settled(calibration, 200, 61.0) == pytest.approx(1.03)
    assert settled(calibration, 200, 70.0) == pytest.approx(1.03)
    assert settled(calibration, 200, 130.0, has_slack=False) == pytest.approx(1.03)


def test_calibration__target_is_missed__nodes_are_taken_to_bear_less_at_once_but_not_without_end() -> None:
    calibration = CapacityCalibration()
    calibration.restart(0.0)

    assert settled(calibration, 150, 1.0) == pytest.approx(0.92)
    for at_s in range(2, 30):
        settled(calibration, 0, float(at_s))
    assert calibration.factor == 0.6


def test_calibration__few_requests_or_others_since__says_nothing() -> None:
    calibration = CapacityCalibration()
    calibration.note(50, 0)
    assert not calibration.settle(0.95, has_slack=True, every_s=1.0, now_s=100.0)
    calibration.note(150, 0)
    calibration.restart(101.0)

    assert not calibration.settle(0.95, has_slack=True, every_s=1.0, now_s=200.0)
    assert calibration.factor == 1.0


def test_signals__more_waits_than_comes_within_the_target__is_demand_too() -> None:
    """10 a second and 2 s for a first token: 20 may wait and 2 more, so 30 of 52 are too many."""
    made = make_model("m", spec=make_spec(), rate_per_s=10.0, slo=SloTarget(ttft_s=2.0, tbt_s=0.1))
    signals = LeadingSignals(queues={"m": QueueSignal(waiting=52)})

    assert signals.excess(made) == 30.0
    assert signals.pressed([made])[0].demand.rate_per_s == pytest.approx(12.0)
    assert replace(signals, queues={}).pressed([made])[0].demand.rate_per_s == 10.0


def test_signals__told_to_people__say_what_is_short() -> None:
    signals = LeadingSignals(
        queues={"m": QueueSignal(waiting=3, held=2, queued_tokens=700)}, decode_headroom=-0.1, bubble_share=0.5
    )

    told = "700 prompt tokens queued, 2 requests held, decode misses its target"
    assert signals.in_words() == f"{told}, prefill idles 50% of its time beside work"
    assert not signals.has_slack
    assert LeadingSignals().has_slack
