"""Calls to the control loop of the fleet in the cluster of this process."""

from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deploy.control.cordons import Cordon, CordonScope
from deploy.control.fleet_status import FleetStatus
from deploy.errors import FleetUnreachable
from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT
from deploy.serve.serve_fleet import deployment_handle

_TIMEOUT_S = 10.0
_PLAN_TIMEOUT_S = 60.0  # for the rest of the fleet, by a process that is started for it


class ControllerCalls:
    """Each call raises FleetUnreachable."""

    def __init__(self, fleet: str) -> None:
        """`fleet` is what an error calls it."""
        self._fleet = fleet
        self._handle: DeploymentHandle[Any] | None = None

    def status(self) -> FleetStatus:
        status: FleetStatus = self._answer(lambda h: h.status.remote(), _TIMEOUT_S)
        return status

    def cordon(self, cordon: Cordon) -> Mapping[str, str]:
        """Returns the models that no other unit can hold, and why; then nothing has changed."""
        homeless: Mapping[str, str] = self._answer(lambda h: h.cordon.remote(cordon), _PLAN_TIMEOUT_S)
        return homeless

    def uncordon(self, scope: CordonScope, name: str) -> bool:
        """False: there was no cordon."""
        return bool(self._answer(lambda h: h.uncordon.remote(scope, name), _TIMEOUT_S))

    def _answer(self, ask: Callable[[DeploymentHandle[Any]], Any], timeout_s: float) -> Any:  # noqa: ANN401 - Serve's
        try:
            if self._handle is None:
                self._handle = deployment_handle(CONTROLLER_DEPLOYMENT, CONTROL_APP)
            return ask(self._handle).result(timeout_s=timeout_s)
        except (RayError, RayServeException, TimeoutError) as error:
            self._handle = None
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise FleetUnreachable(address=self._fleet, reason=f"its control loop does not answer: {reason}") from error
