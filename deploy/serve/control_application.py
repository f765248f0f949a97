"""The control loop's Serve application."""

from ray.serve import Application

from deploy.log_lines import log_from_replica
from deploy.serve.app_args import CONTROLLER_DEPLOYMENT
from deploy.serve.replica_deployment import replica_deployment


def control_application(*, replica: str) -> Application:
    """Raises OpenCluster."""
    return replica_deployment(CONTROLLER_DEPLOYMENT, replica).bind(start_log=log_from_replica)
