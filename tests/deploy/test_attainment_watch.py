"""Requests that are no longer in time have the control loop look, whatever the estimate says."""

from dataclasses import replace

import pytest

from deploy.control.popularity import Popularity
from deploy.control.target_learning import AttainmentWatch
from placement.demand import ModelDemand
from router.admission.demand_report import DemandReport, ModelAsked

NOTHING = ModelAsked(model="m", requests_total=0, prompt_tokens_total=0, output_tokens_total=0)


def after(before: ModelAsked, *, in_time: int, late: int = 0, shed: int = 0) -> ModelAsked:
    return replace(
        before,
        requests_total=before.requests_total + in_time + late + shed,
        finished_total=before.finished_total + in_time + late,
        in_time_total=before.in_time_total + in_time,
        shed_total=before.shed_total + shed,
    )


def test_watch__share_in_time_falls__is_told_once_until_it_has_recovered() -> None:
    watch, told, asked = AttainmentWatch(), [], NOTHING
    for in_time, late in ((20, 0), (14, 6), (14, 6), (19, 1), (10, 10)):
        before, asked = asked, after(asked, in_time=in_time, late=late)
        watch.count(before, asked)
        told.append(watch.fallen())

    assert told[1] == ("70% of the last 20 requests for m were in time",)
    assert [len(t) for t in told] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(("shed", "is_told"), [(0, False), (5, True)])
def test_watch__requests_are_turned_away__they_were_not_in_time(shed: int, is_told: bool) -> None:
    watch = AttainmentWatch()
    watch.count(NOTHING, after(NOTHING, in_time=20, shed=shed))

    assert bool(watch.fallen()) is is_told


def test_watch__few_requests__say_nothing_until_there_are_more() -> None:
    watch = AttainmentWatch()
    some = after(NOTHING, in_time=0, late=10)
    watch.count(NOTHING, some)
    assert watch.fallen() == ()

    watch.count(some, after(some, in_time=0, late=10))
    assert watch.fallen() == ("0% of the last 20 requests for m were in time",)


def test_popularity__attainment_falls__is_news() -> None:
    popularity = Popularity()
    popularity.expect([ModelDemand(model="m", rate_per_s=1.0, prompt_tokens=10, output_tokens=10)])
    popularity.hear(DemandReport(gateway_id="g", models=(NOTHING,)), 0.0)
    assert popularity.news(0.0) is None

    popularity.hear(DemandReport(gateway_id="g", models=(after(NOTHING, in_time=2, late=18),)), 1.0)

    assert popularity.news(1.0) == "10% of the last 20 requests for m were in time"
    assert popularity.news(1.0) is None
