"""Engines count what their launches took beside what their latency model says."""

import pytest

from pdmux_actor.messages import StepPhase
from pdmux_actor.scheduling.learned_scales import MeasuredSteps

WARM_UP = 3


def test_totals__launches_on_several_shares__are_summed_by_quarter_after_the_first_ones() -> None:
    measured = MeasuredSteps()
    for _ in range(WARM_UP):
        measured.note("m", StepPhase.DECODE, 132, 0.01, 1.0)
    for sms in (60, 66, 132):
        measured.note("m", StepPhase.DECODE, sms, 0.01, 0.013)

    half, whole = measured.of("m", num_sms=132)

    assert (half.phase, half.quarters, half.launches) == ("decode", 2, 2)
    assert (whole.quarters, whole.launches) == (4, 1)
    assert half.measured_s / half.modelled_s == pytest.approx(1.3)


def test_totals__something_stood_for_a_minute__counts_for_no_more_than_a_slow_step() -> None:
    measured = MeasuredSteps()
    for _ in range(WARM_UP + 1):
        measured.note("m", StepPhase.PREFILL, 4, 0.01, 60.0)

    (totals,) = measured.of("m", num_sms=4)

    assert totals.measured_s <= 0.5


def test_totals__model_leaves__begin_again() -> None:
    measured = MeasuredSteps()
    for model in ("m", "other"):
        for _ in range(WARM_UP + 2):
            measured.note(model, StepPhase.DECODE, 4, 0.01, 0.01)
    measured.forget("m")
    measured.note("m", StepPhase.DECODE, 4, 0.01, 0.01)

    assert measured.of("m", num_sms=4) == ()
    assert measured.of("other", num_sms=4)[0].launches == 2
