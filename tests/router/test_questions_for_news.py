"""What a gateway asks control loops of other releases, and those that fail over what they are told."""

import pytest
from fake_unit import FakeUnit, eventually, fleet_view
from ray.exceptions import RayActorError, RayTaskError
from served_ingress import until_ready

from router import serve_deployment as serve_adapter


def warnings_of(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == serve_adapter.__name__]


async def test_view__control_loop_of_a_release_without_news__is_asked_as_before(ingress, tokenizer_folder) -> None:
    control, http = ingress
    control.is_old = True
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        asked = control.asked
        await eventually(lambda: control.asked > asked + 3)


async def test_view__control_loop_stays_one_without_news__is_told_once_and_tried_more_rarely(
    ingress, tokenizer_folder, caplog
) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        caplog.clear()
        control.questions.clear()
        control.is_old = True
        await eventually(lambda: len(control.questions) > 100)

    plain = [len(run) for run in "".join(kind[0] for kind in control.questions[:100]).split("n")]
    assert plain[:6] == [0, 1, 2, 4, 8, 16]
    assert warnings_of(caplog) == ["control loop tells no news; it is asked as one of an earlier release"]


async def test_view__control_loop_without_news_is_followed_by_one_with_them__is_asked_for_news_at_once(
    ingress, tokenizer_folder
) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        control.questions.clear()
        control.is_old = True
        await eventually(lambda: control.questions.count("news") == 6)  # 32 plain ones would follow
        view, control.view = control.view, None  # as it ends
        asked = len(control.questions)
        await eventually(lambda: len(control.questions) > asked)
        control.is_old, control.view = False, view
        asked = len(control.questions)
        await eventually(lambda: len(control.questions) > asked + 10)

    assert set(control.questions[asked + 1 :]) == {"news"}


async def test_view__control_loop_refuses_every_question__is_told_once(ingress, tokenizer_folder, caplog) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        caplog.clear()
        control.is_old, control.fails = True, RayTaskError("fleet_view", "", "a bug")
        asked = len(control.questions)
        await eventually(lambda: len(control.questions) > asked + 50)

    assert warnings_of(caplog) == [
        "control loop tells no news; it is asked as one of an earlier release",
        "control loop does not answer; the last view stays",
    ]


async def test_view__control_loop_writes_news_otherwise__is_asked_as_before(replica, tokenizer_folder) -> None:
    ingress, control, http = replica
    control.writes_otherwise = True
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        ingress._gateway.events.moved(model="m", unit="u", request_id="r", reason="gone")
        await eventually(lambda: control.events)
        asked = control.asked
        await eventually(lambda: control.asked > asked + 3)

    assert [e.request_id for e in control.events] == ["r"], "it has read them"


@pytest.mark.parametrize(
    ("error", "questions"),
    [
        (RayTaskError("told_news", "", "TypeError()"), ["news", "plain", "news", "plain", "plain", "news"]),
        (RayActorError(), ["news", "news", "news"]),
        (TimeoutError(), ["news", "news", "news"]),
    ],
)
async def test_events__control_loop_fails_over_them__come_again_and_views_come_meanwhile(
    replica, tokenizer_folder, error, questions
) -> None:
    ingress, control, http = replica
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        control.refuses = [error, error]
        asked = len(control.questions)
        ingress._gateway.events.moved(model="m", unit="u", request_id="r", reason="gone")
        await eventually(lambda: control.events)

    assert [e.request_id for e in control.events] == ["r"]
    assert control.refuses == []
    assert control.questions[asked : asked + len(questions)] == questions
