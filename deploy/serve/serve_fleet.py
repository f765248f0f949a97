"""Deploys a fleet on Serve and watches it come up. Import it only after the environment is set, as `local_ray`."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import httpx
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.serve._private.application_state import ApplicationStatusInfo
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from deploy.control.fleet_status import FleetStatus, ModelState
from deploy.errors import FleetStartError, FleetUnreachable, StopUnanswered
from deploy.fleet_file.settings import FleetFile
from deploy.serve.app_args import (
    CONTROL_APP,
    CONTROLLER_DEPLOYMENT,
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    UNIT_DEPLOYMENT,
)
from deploy.serve.fleet_change import FleetChange, change_between, only_at_start
from deploy.serve.render import application_names, as_large_as_now, serve_config
from deploy.serve.serve_calls import (
    application_statuses,
    begin_serve,
    check_deployment,
    deploy_applications,
    serve_details,
    until_proxies_serve,
)

_POLL_S = 0.2
_CALL_TIMEOUT_S = 10.0
_STOP_CALL_TIMEOUT_S = 2.0
_SEE_LOGS = "run again with -v for the logs"


class ServeFleet:
    """A fleet that runs in the cluster of this process, or shall."""

    def __init__(self, fleet: FleetFile) -> None:
        self._fleet = fleet
        self._apps = application_names(fleet)
        self._controller: DeploymentHandle[Any] | None = None
        host = fleet.gateway.host
        self.url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{fleet.gateway.port}"

    def status(self) -> FleetStatus:
        if self._controller is None:
            self._controller = deployment_handle(CONTROLLER_DEPLOYMENT, CONTROL_APP)
        return cast(FleetStatus, self._controller.status.remote().result(timeout_s=_CALL_TIMEOUT_S))

    def change(self) -> FleetChange:
        """Returns what `deploy` would change.

        Raises:
            FleetUnreachable: no fleet runs in the cluster, or Serve does not answer.
        """
        with self._answering():
            running, http = _deployed()
            units = _running_units()
        if not all(name in running for name in (CONTROL_APP, GATEWAY_APP)):
            raise FleetUnreachable(
                address=self._fleet.name, reason="its cluster runs no fleet; start it with `muxfleet up`"
            )
        config = as_large_as_now(serve_config(self._fleet), self._fleet, units)
        change = change_between(running, {a["name"]: a for a in config["applications"]})
        return replace(change, not_applied=only_at_start(http, config["http_options"]))

    def deploy(self) -> None:
        """Raises FleetUnreachable: Serve does not answer."""
        with self._answering():
            deploy_applications(as_large_as_now(serve_config(self._fleet), self._fleet, _running_units()))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (GetTimeoutError, RayActorError) as error:
            reason = (
                "Serve's controller in its cluster does not answer; what runs goes on: try again, or look at the head"
            )
            raise FleetUnreachable(address=self._fleet.name, reason=reason) from error

    def wait_until_ready(
        self,
        *,
        on_change: Callable[[ModelState], None],
        deadline_s: float,
        on_stage: Callable[[str], None] = lambda stage: None,
        on_models: Callable[[Sequence[ModelState]], None] = lambda models: None,
    ) -> Sequence[str]:
        """Returns when every model is READY, asleep, or has a problem that waiting does not solve: those problems.
        `on_stage` is told what is waited for, again and again, and before that `on_models` how far all are.

        Raises:
            FleetStartError: an application failed, no model became READY, or the time is over.
        """
        until_s = time.monotonic() + deadline_s
        self._wait_for_applications(until_s, on_stage)
        shown: dict[str, ModelState] = {}
        while True:
            models = self._models(until_s)
            for model in models:
                if (model.phases, model.problem) != _seen(shown.get(model.model)):
                    shown[model.model] = model
                    on_change(model)
            on_models(models)
            on_stage(_loading(models))
            waited_for = [m for m in models if not (m.is_as_asked or m.is_asleep or m.problem is not None)]
            if not waited_for:
                break
            self._check_time(until_s, f"models not ready: {', '.join(map(_awaited, waited_for))}")
            time.sleep(_POLL_S)
        if not any(m.is_ready or m.is_asleep for m in models):
            raise FleetStartError(
                reason=f"no model is ready ({'; '.join(f'{m.model}: {m.problem}' for m in models)})", remedy=_SEE_LOGS
            )
        on_stage("waiting for the gateways to see the models")
        self._wait_for_gateway(until_s)
        self._wait_for_gateways(until_s)
        return [m.problem for m in models if m.problem is not None and not (m.is_as_asked or m.is_asleep)]

    def _models(self, until_s: float) -> tuple[ModelState, ...]:
        """A control loop that plans, or starts again, on a busy machine may be slow to answer."""
        while True:
            try:
                return self.status().models
            except (RayError, RayServeException, TimeoutError) as error:
                self._controller = None
                self._check_time(until_s, f"the control loop does not answer: {_last_line(str(error))}")
            time.sleep(_POLL_S)

    def _wait_for_applications(self, until_s: float, on_stage: Callable[[str], None]) -> None:
        while True:
            try:
                statuses = application_statuses()
            except (GetTimeoutError, RayActorError, RayServeException) as error:
                self._check_time(until_s, f"Serve's controller does not answer: {_last_line(str(error))}")
                time.sleep(_POLL_S)
                continue
            on_stage(_starting(self._apps, statuses))
            for name, app in statuses.items():
                if app.status == ApplicationStatus.DEPLOY_FAILED:
                    raise FleetStartError(
                        reason=f"Serve could not deploy {name!r}: {_last_line(app.message)}",
                        remedy=_SEE_LOGS,
                    )
            if all(n in statuses and statuses[n].status == ApplicationStatus.RUNNING for n in self._apps):
                return
            self._check_time(until_s, f"Serve is still deploying ({_describe(statuses)})")
            time.sleep(_POLL_S)

    def _wait_for_gateway(self, until_s: float) -> None:
        while True:
            try:
                if httpx.get(f"{self.url}/ready", timeout=_CALL_TIMEOUT_S, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError as error:
                self._check_time(until_s, f"the gateway does not answer at {self.url}: {error}")
            self._check_time(until_s, f"the gateway at {self.url} is not ready")
            time.sleep(_POLL_S)

    def _wait_for_gateways(self, until_s: float) -> None:
        """One that answers is not all of them: each follows the fleet by itself. Another change may have taken models
        away meanwhile: those nobody will see.
        """
        reason = "a gateway does not see the models yet"
        while True:
            models = {m.model for m in self._models(until_s) if m.is_ready}
            try:
                gateways = deployment_handle(GATEWAY_DEPLOYMENT, GATEWAY_APP)
                routable = gateways.broadcast("routable_models").results(timeout_s=_CALL_TIMEOUT_S)
                if all(models <= set(of_one) for of_one in routable):
                    return
            except (RayError, RayServeException, TimeoutError) as error:  # one was replaced under the question
                reason = f"a gateway does not answer: {_last_line(str(error))}"
            self._check_time(until_s, reason)
            time.sleep(_POLL_S)

    @staticmethod
    def _check_time(until_s: float, reason: str) -> None:
        if time.monotonic() > until_s:
            raise FleetStartError(reason=reason, remedy="run again with -v for the logs, or allow more with --wait")


@contextmanager
def serve_fleet(
    fleet: FleetFile, *, outlived_by_ray: bool, is_lost: Callable[[], bool], finish_s: float
) -> Iterator[ServeFleet]:
    """Deploys both applications and takes them down at the end. Streams in flight have `finish_s` to finish; then an
    error is their end. In a cluster that stays, Serve goes too if it was started here: its port cannot be changed while
    it runs. Of a cluster that `is_lost` nothing is asked any more.

    Raises:
        FleetStartError: Serve runs other applications in the cluster.
        StopUnanswered: Serve's controller does not answer at the end.
    """
    was_running = _refuse_foreign_applications()
    config = serve_config(fleet)
    try:
        proxies = () if was_running else begin_serve(config)
        ServeFleet(fleet).deploy()  # the applications' processes start beside the proxies
        until_proxies_serve(proxies)
    except (RayError, RayServeException, RuntimeError) as error:
        if outlived_by_ray and not is_lost():
            with suppress(RayError, RayServeException, RuntimeError, TimeoutError):  # what did not start says why
                _take_down(with_serve=not was_running)
        raise FleetStartError(reason=f"Serve does not start: {_last_line(str(error))}", remedy=_SEE_LOGS) from error
    has_served = False
    try:
        yield ServeFleet(fleet)
        has_served = True
    finally:
        if not is_lost():
            try:
                if has_served:
                    _bound_answers(finish_s)
                _take_down(with_serve=outlived_by_ray and not was_running)
            except (RayError, RayServeException, TimeoutError) as error:
                if has_served or outlived_by_ray:  # else its cluster takes all of it along, and no stream has begun
                    raise StopUnanswered(outlived_by_ray=outlived_by_ray) from error


def _bound_answers(finish_s: float) -> None:
    """What goes asks nobody any more, so that gateways are told before. One that does not answer cuts its streams."""
    with suppress(RayError, RayServeException, TimeoutError):
        gateways = deployment_handle(GATEWAY_DEPLOYMENT, GATEWAY_APP)
        gateways.broadcast("end_answers", finish_s).results(timeout_s=_STOP_CALL_TIMEOUT_S)


def _take_down(*, with_serve: bool) -> None:
    _client().delete_apps(sorted(application_statuses()), blocking=True)
    if with_serve:
        serve.shutdown()  # type: ignore[no-untyped-call]  # Ray has no types there


def _refuse_foreign_applications() -> bool:
    """Whether Serve runs there."""
    try:
        others = sorted(application_statuses())
    except RayServeException:
        return False
    except GetTimeoutError as error:
        raise FleetStartError(reason="Serve's controller in this cluster does not answer", remedy=_SEE_LOGS) from error
    if others:
        raise FleetStartError(
            reason=f"Serve already runs {', '.join(others)} in this cluster",
            remedy="use `muxfleet render FILE` and `serve deploy` to change a running cluster",
        )
    return True


def deployment_handle(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Raises RayServeException: there is none. GetTimeoutError: Serve does not answer."""
    check_deployment(deployment, application)
    handle = serve.get_deployment_handle(deployment, app_name=application, _check_exists=False)
    if not handle.is_initialized:  # Serve returns the same one to who asks again
        # With Serve's throughput flags a handle wants an event loop, unless it is told to bring its own.
        handle._init(_run_router_in_separate_loop=True)  # type: ignore[no-untyped-call]  # Ray has no types there
    return handle


def _deployed() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """By application, what it was deployed from; and Serve's HTTP options."""
    try:
        details = serve_details()
    except RayServeException:
        return {}, {}
    applications = {name: app["deployed_app_config"] or {} for name, app in details["applications"].items()}
    return applications, details.get("http_options") or {}


def _running_units() -> Mapping[str, int]:
    """Returns, by application, how many units Serve shall run now."""
    try:
        applications = serve_details()["applications"]
    except RayServeException:
        return {}
    units = {name: app["deployments"].get(UNIT_DEPLOYMENT) for name, app in applications.items()}
    return {name: unit["target_num_replicas"] for name, unit in units.items() if unit is not None}


def _client() -> Any:  # noqa: ANN401  Serve's client class is private
    return _get_global_client()


def _seen(model: ModelState | None) -> tuple[object, object] | None:
    return None if model is None else (model.phases, model.problem)


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _starting(apps: Sequence[str], statuses: Mapping[str, ApplicationStatusInfo]) -> str:
    waiting = [app for app in apps if app not in statuses or statuses[app].status != ApplicationStatus.RUNNING]
    return f"starting the processes of {', '.join(waiting)}" if waiting else "asking what is loaded"


def _loading(models: Sequence[ModelState]) -> str:
    waiting = [_awaited(m) for m in models if not (m.is_as_asked or m.is_asleep or m.problem is not None)]
    if waiting:
        return f"loading {', '.join(waiting)}"
    asleep = [m.model for m in models if m.is_asleep]
    return "every model has been loaded" + (f", or is when asked for: {', '.join(asleep)}" if asleep else "")


def _awaited(model: ModelState) -> str:
    return f"{model.model} ({model.weights_told})" if model.weights_told else model.model


def _describe(statuses: Mapping[str, ApplicationStatusInfo]) -> str:
    return ", ".join(f"{name}: {app.status.value}" for name, app in statuses.items()) or "nothing is deployed yet"
