"""What is told of Serve's own controller when it says nothing."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError
from ray.serve.exceptions import RayServeException

from deploy.control.fleet_status import ModelState
from deploy.errors import FleetStartError, FleetUnreachable, StopUnanswered
from deploy.fleet_file.settings import parse_fleet_file
from deploy.serve import serve_calls, serve_fleet
from deploy.serve.controller import Controller
from deploy.serve.serve_calls import SILENT_S, ServeWatch, check_serve_answers, until_proxies_serve
from deploy.serve.serve_fleet import ServeFleet, _refuse_foreign_applications
from pdmux_actor.lease import ModelPhase

FLEET = parse_fleet_file("{name: f, models: [{id: a, source: org/a}]}", name="f.yaml", base=Path("/"))


def silent(*_: object) -> Any:
    raise GetTimeoutError("Get timed out: some object(s) not ready.")


def test_watch__silent_for_long__is_told_once_and_so_is_its_end() -> None:
    watch = ServeWatch()

    assert watch.is_silent(100.0, "GetTimeoutError") is None
    assert watch.is_silent(100.0 + SILENT_S - 1, "GetTimeoutError") is None
    told = watch.is_silent(101.0 + SILENT_S, "GetTimeoutError")
    assert watch.is_silent(110.0 + SILENT_S, "GetTimeoutError") is None
    back = watch.answers(120.0 + SILENT_S)

    assert told is not None
    assert "said nothing for 31 s (GetTimeoutError): requests go on" in told
    assert back == "Serve's controller answers again, after 50 s"
    assert watch.answers(200.0) is None


def test_watch__silent_for_a_moment__is_not_told() -> None:
    watch = ServeWatch()
    watch.is_silent(100.0, "GetTimeoutError")

    assert watch.answers(110.0) is None
    assert watch.is_silent(110.0 + SILENT_S, "GetTimeoutError") is None, "another silence begins"


async def test_controller__serve_says_nothing_and_comes_back__are_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_calls, "SILENT_S", 0.0)
    monkeypatch.setattr(serve_calls, "_POLL_S", 0.01)
    answers = False

    def check() -> None:
        if not answers:
            silent()

    controller = Controller(token="t", going_nodes=frozenset, check_serve_answers=check)
    await controller.reconfigure({"policy": "mux", "expected_units": {"p": 1}, "models": []})
    async with asyncio.timeout(60):
        while b"serve_silent" not in await controller.events(60):  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)
        answers = True
        while b"serve_back" not in await controller.events(60):  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)


def test_serve_calls__outside_of_a_cluster__start_none() -> None:
    with pytest.raises(RayServeException, match="in no Ray cluster"):
        check_serve_answers()


@pytest.mark.parametrize(
    "ask", [serve_calls.serve_details, serve_calls.check_serve_answers, _refuse_foreign_applications]
)
def test_serve_calls__first_of_a_process_and_serve_stands__end(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    """`muxfleet apply` said nothing for 400 s: Serve's client waits for its controller without an end."""

    def waited_for(*_: object, timeout: float | None = None) -> Any:
        assert timeout is not None, "for ever"
        silent()

    asked = SimpleNamespace(remote=lambda: None)
    stands = SimpleNamespace(get_http_config=asked, get_root_url=asked)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: stands)
    monkeypatch.setattr(ray, "get", waited_for)

    with pytest.raises((GetTimeoutError, FleetStartError)):
        ask()


@pytest.mark.parametrize("ask", [ServeFleet.change, ServeFleet.deploy])
def test_apply__serve_says_nothing__is_one_error_and_no_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    monkeypatch.setattr(serve_fleet, "serve_details", silent)

    with pytest.raises(FleetUnreachable, match="no fleet answers at f: Serve's controller in its cluster does not"):
        ask(ServeFleet(FLEET))


def test_start__serve_says_nothing__ends_with_the_time_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_fleet, "application_statuses", silent)

    with pytest.raises(FleetStartError, match="Serve's controller does not answer: Get timed out"):
        ServeFleet(FLEET).wait_until_ready(on_change=lambda model: None, deadline_s=0.1)


def test_start__serve_has_ended_a_proxy_that_was_slow_to_come__waits_for_the_one_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a busy machine: the start failed, "killed by `ray.kill`"."""

    def killed(*_: object, timeout: float) -> None:
        raise ActorDiedError

    monkeypatch.setattr("deploy.serve.serve_calls.ray.get", killed)

    until_proxies_serve([object()])


@pytest.fixture
def deaf_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve that starts a fleet and does not answer any more when it is to end."""

    def unavailable() -> None:
        raise ActorUnavailableError("The actor is temporarily unavailable", None)

    monkeypatch.setattr(serve_fleet, "_refuse_foreign_applications", lambda: False)
    monkeypatch.setattr(serve_fleet, "begin_serve", lambda config: ())
    monkeypatch.setattr(serve_fleet, "until_proxies_serve", lambda proxies: None)
    monkeypatch.setattr(ServeFleet, "deploy", lambda self: None)
    monkeypatch.setattr(serve_fleet, "_client", unavailable)
    monkeypatch.setattr(serve_fleet, "application_statuses", unavailable)


@pytest.mark.usefixtures("deaf_serve")
@pytest.mark.parametrize(
    ("outlived_by_ray", "told"), [(False, "streams in flight were cut short"), (True, "`serve shutdown` there ends it")]
)
def test_stop__serve_says_nothing__is_one_error_that_tells_what_is_left(outlived_by_ray: bool, told: str) -> None:
    with (
        pytest.raises(StopUnanswered, match=f"did not answer at the stop: .*{told}") as stopped,
        serve_fleet.serve_fleet(FLEET, outlived_by_ray=outlived_by_ray, is_lost=lambda: False, finish_s=1.0),
    ):
        pass

    assert stopped.value.exit_code == 1


@pytest.mark.usefixtures("deaf_serve")
@pytest.mark.parametrize("answers", [True, False])
def test_stop__gateways_are_told_when_answers_end__before_they_go(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Later nobody reaches them. One that says nothing holds up no stop."""
    done: list[object] = []

    class Told:
        def results(self, timeout_s: float) -> None:
            if not answers:
                raise TimeoutError

    class Gateways:
        def broadcast(self, *call: object) -> Told:
            done.append(call)
            return Told()

    monkeypatch.setattr(serve_fleet, "deployment_handle", lambda deployment, application: Gateways())
    monkeypatch.setattr(serve_fleet, "_take_down", lambda with_serve: done.append("taken down"))

    with serve_fleet.serve_fleet(FLEET, outlived_by_ray=False, is_lost=lambda: False, finish_s=24.0):
        pass

    assert done == [("end_answers", 24.0), "taken down"]


@pytest.mark.usefixtures("deaf_serve")
def test_stop__serve_says_nothing_after_a_start_that_failed__tells_why_it_failed() -> None:
    with (
        pytest.raises(FleetStartError, match="no model is ready"),
        serve_fleet.serve_fleet(FLEET, outlived_by_ray=False, is_lost=lambda: False, finish_s=1.0),
    ):
        raise FleetStartError(reason="no model is ready", remedy="look")


def test_wait_for_gateways__another_change_takes_the_model_away__does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two `muxfleet apply` in a row: the first one's model is gone before every gateway has seen it."""
    told = [("a", "renamed"), ("a",)]

    class Answers:
        def results(self, timeout_s: float) -> list[list[str]]:
            return [["a"], ["a"]]

    class Gateways:
        def broadcast(self, call: str) -> Answers:
            assert call == "routable_models"
            return Answers()

    def models(_: ServeFleet, until_s: float) -> tuple[Any, ...]:
        ready = told.pop(0) if len(told) > 1 else told[0]
        return tuple(SimpleNamespace(model=model, is_ready=True) for model in ready)

    monkeypatch.setattr(ServeFleet, "_models", models)
    monkeypatch.setattr(serve_fleet, "deployment_handle", lambda deployment, application: Gateways())
    ServeFleet(FLEET)._wait_for_gateways(time.monotonic() + 60)

    assert told == [("a",)]


def test_wait_for_gateways__one_is_replaced_under_the_question__asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ActorUnavailableError("The actor is temporarily unavailable", None), [["a"]]]

    class Answers:
        def results(self, timeout_s: float) -> list[list[str]]:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer

    monkeypatch.setattr(ServeFleet, "_models", lambda _, until_s: (SimpleNamespace(model="a", is_ready=True),))
    gateways = SimpleNamespace(broadcast=lambda call: Answers())
    monkeypatch.setattr(serve_fleet, "deployment_handle", lambda deployment, application: gateways)
    ServeFleet(FLEET)._wait_for_gateways(time.monotonic() + 60)

    assert not answers


def test_stage__models_that_nobody_has_asked_for__are_not_said_to_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ModelState(model="a", phases=(ModelPhase.READY,), planned_units=("u",), problem=None)
    asleep = ModelState(model="b", phases=(), planned_units=(), problem=None, is_asleep=True)
    monkeypatch.setattr(ServeFleet, "_models", lambda self, until_s: (ready, asleep))
    for wait in ("_wait_for_applications", "_wait_for_gateway", "_wait_for_gateways"):
        monkeypatch.setattr(ServeFleet, wait, lambda self, *arguments: None)
    stages: list[str] = []

    ServeFleet(FLEET).wait_until_ready(on_change=lambda model: None, deadline_s=1.0, on_stage=stages.append)
    assert stages[0] == "every model has been loaded, or is when asked for: b"
