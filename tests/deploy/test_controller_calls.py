"""Calls to a control loop that dies and is replaced meanwhile."""

from concurrent.futures import Future
from typing import Any

import pytest
from fleet_model import FakeUnit, fleet_status
from ray import serve
from ray.exceptions import ActorDiedError, GetTimeoutError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deploy.control.fleet_status import FleetStatus
from deploy.errors import FleetUnreachable
from deploy.serve import serve_fleet
from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT
from deploy.serve.controller_calls import ControllerCalls

FLEET = fleet_status(FakeUnit("p-aa1", node="abc1"))


class Reply:
    """What Serve calls a replica's result."""

    def __init__(self, answer: FleetStatus | Exception) -> None:
        self._answer = answer

    def get(self, timeout_s: float | None) -> FleetStatus:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Router:
    """Serve's, in a process without Ray: each call takes the next answer."""

    def __init__(self, *answers: FleetStatus | Exception) -> None:
        self._answers = list(answers)

    def assign_request(self, *request: object) -> Future[Reply]:
        future: Future[Reply] = Future()
        future.set_result(Reply(self._answers.pop(0)))
        return future


@pytest.fixture
def died_and_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve keeps one handle of a deployment, and returns it to who asks again."""
    router = Router(FLEET, ActorDiedError(), FLEET)
    kept: DeploymentHandle[Any] = DeploymentHandle(
        CONTROLLER_DEPLOYMENT, CONTROL_APP, _create_router=lambda **options: router
    )
    monkeypatch.setattr(serve, "get_deployment_handle", lambda deployment, app_name, _check_exists: kept)
    monkeypatch.setattr(serve_fleet, "check_deployment", lambda deployment, application: None)


@pytest.mark.usefixtures("died_and_is_back")
def test_status__of_a_control_loop_that_died_and_is_back__is_answered_again() -> None:
    calls = ControllerCalls("demo")

    assert calls.status() == FLEET
    with pytest.raises(FleetUnreachable, match="its control loop does not answer"):
        calls.status()
    assert calls.status() == FLEET


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (GetTimeoutError("Get timed out: some object(s) not ready."), "Get timed out"),
        (RayServeException("Serve runs no Controller of an application 'control' there"), "runs no Controller"),
    ],
)
def test_status__serve_says_nothing_or_runs_something_else__is_one_error(
    monkeypatch: pytest.MonkeyPatch, answer: Exception, told: str
) -> None:
    def refuse(deployment: str, application: str) -> None:
        raise answer

    monkeypatch.setattr(serve_fleet, "check_deployment", refuse)

    with pytest.raises(FleetUnreachable, match=f"no fleet answers at demo: its control loop does not answer: .*{told}"):
        ControllerCalls("demo").status()
