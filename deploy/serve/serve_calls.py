"""Calls to Serve's own controller that end: Ray waits for as long as it says nothing, which may be for
good. One asks again and again whether it is there, and tells when it is not.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.serve._private.api import _create_controller_and_proxy_refs
from ray.serve._private.application_state import ApplicationStatusInfo, StatusOverview
from ray.serve._private.common import DeploymentID
from ray.serve._private.constants import HTTP_PROXY_TIMEOUT, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.config import ControllerOptions
from ray.serve.context import _cached_client_from_current_session, _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.generated.serve_pb2 import (  # type: ignore[attr-defined]  # Ray's generated module has no types
    StatusOverview as StatusOverviewProto,
)
from ray.serve.schema import ServeDeploySchema

from router.telemetry.fleet_event import EventKind

_ALIVE_S = 5.0
_DETAILS_S = 10.0
_DEPLOY_S = 60.0

# All raise RayServeException where no Serve runs, GetTimeoutError where it does not answer, and what else Ray raises.


def begin_serve(config: Mapping[str, Any]) -> Sequence[Any]:
    """Starts Serve as `serve.start` does, by a config that `serve deploy` takes. Returns its proxies for
    `until_proxies_serve`: applications can be deployed before.
    """
    _, proxies = _create_controller_and_proxy_refs(
        http_options=config["http_options"],
        grpc_options=None,
        global_logging_config=config["logging_config"],
        global_tracing_config=None,
        controller_options=ControllerOptions(),
        proxy_location=config["proxy_location"],
    )
    return list(proxies)


def until_proxies_serve(proxies: Sequence[Any]) -> None:
    """Returns early where Serve has ended one that was slow to come, as on a busy machine: it starts another, and who
    waits for the gateway to answer waits for that one.
    """
    with suppress(RayActorError):
        ray.get(list(proxies), timeout=HTTP_PROXY_TIMEOUT)


def check_serve_answers() -> None:
    ray.get(_controller().check_alive.remote(), timeout=_ALIVE_S)


def check_deployment(name: str, application: str) -> None:
    """Raises RayServeException also where Serve runs no such deployment."""
    known = ray.get(_controller().list_deployment_ids.remote(), timeout=_ALIVE_S)
    if DeploymentID(name=name, app_name=application) not in known:
        raise RayServeException(f"Serve runs no {name} of an application {application!r} there")


def serve_details() -> Mapping[str, Any]:
    details: Mapping[str, Any] = ray.get(_controller().get_serve_instance_details.remote(), timeout=_DETAILS_S)
    return details


def application_statuses() -> Mapping[str, ApplicationStatusInfo]:
    """Asks for less than `serve_details`, for which Serve's controller reads all configs anew from the cluster's store:
    who waits for a start asks again and again.
    """
    listed: Sequence[bytes] = ray.get(_controller().list_serve_statuses.remote(), timeout=_DETAILS_S)
    overviews = (StatusOverview.from_proto(StatusOverviewProto.FromString(of_one)) for of_one in listed)
    return {overview.name: overview.app_status for overview in overviews}


def deploy_applications(config: Mapping[str, Any]) -> None:
    """The call behind `serve deploy`: it restarts no more than needed."""
    ray.get(_controller().apply_config.remote(ServeDeploySchema.model_validate(config)), timeout=_DEPLOY_S)


def update_replicas(deployment: Any, number: int) -> None:  # noqa: ANN401  Serve's id
    ray.get(_controller().update_deployment_replicas.remote(deployment, number), timeout=_DETAILS_S)


def _controller() -> Any:  # noqa: ANN401  Serve's client class is private
    if not ray.is_initialized():
        raise RayServeException("this process is in no Ray cluster")  # Serve would start one
    if not _cached_client_from_current_session():  # Serve's first client of a process waits for it without an end
        try:
            controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        except ValueError as error:
            raise RayServeException("no Serve runs in this cluster") from error
        ray.get(controller.get_http_config.remote(), timeout=_DETAILS_S)
    client: Any = _get_global_client()
    return client._controller


_POLL_S = 5.0


async def tell_of_silence(
    check: Callable[[], None], tell: Callable[[float, EventKind, str], None], clock: Callable[[], float]
) -> None:
    """Does not end. `check` blocks, and raises where it is not answered; `tell` takes the time of the event."""
    watch = ServeWatch()
    while True:
        try:
            await asyncio.to_thread(check)
        except Exception as error:  # Ray's client raises what it likes; that it does not answer is what counts
            kind, told = EventKind.SERVE_SILENT, watch.is_silent(clock(), type(error).__name__)
        else:
            kind, told = EventKind.SERVE_BACK, watch.answers(clock())
        if told is not None:
            tell(clock(), kind, told)
        await asyncio.sleep(_POLL_S)


SILENT_S = 30.0
"""Longer than Serve's controller takes to start again with a head that is back at once."""


@dataclass(slots=True)
class ServeWatch:
    """Both methods return what is to be told, once for each silence."""

    _silent_since_s: float | None = None
    _is_told: bool = False

    def is_silent(self, now_s: float, why: str) -> str | None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if self._is_told or now_s - self._silent_since_s < SILENT_S:
            return None
        self._is_told = True
        return (
            f"Serve's controller has said nothing for {now_s - self._silent_since_s:.0f} s ({why}): "
            "requests go on, but units and gateways that are lost are not replaced"
        )

    def answers(self, now_s: float) -> str | None:
        since_s, was_told = self._silent_since_s, self._is_told
        self._silent_since_s, self._is_told = None, False
        if since_s is None or not was_told:
            return None
        return f"Serve's controller answers again, after {now_s - since_s:.0f} s"
