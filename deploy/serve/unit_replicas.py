"""Makes Serve run as many units of a pool as the control loop wants, and end those that it has emptied and no other.

Serve chooses by itself which of its running replicas a lower number ends. So a unit that shall go first says that it is
not healthy any more; the number is lowered when no more units run than are wanted, and what Serve ends then is the
replica that it is starting in the unit's place. Where Ray has an autoscaler, replicas that wait for a node make it add
one, and it takes away nodes on which nothing runs.
"""

import logging
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.serve._private.common import DeploymentID

from deploy.control.pool_scaling import PoolState
from deploy.serve.app_args import UNIT_DEPLOYMENT, units_app
from deploy.serve.serve_calls import serve_details, update_replicas

logger = logging.getLogger(__name__)

_TIMEOUT_S = 8.0


def number_asked(*, wanted: int, running: int, target: int) -> int:
    """Returns what Serve is asked for instead of `target`: never fewer than run, so that it chooses none of them."""
    return max(wanted, min(running, target))


class UnitReplicas:
    """Blocks while it talks to Serve."""

    def follow(self, pools: Sequence[PoolState]) -> None:
        """Raises what Ray's client raises."""
        elastic = [p for p in pools if p.most > p.least and not p.shadow]
        if not elastic:
            return
        applications = serve_details()["applications"]
        for pool in elastic:
            application = applications.get(units_app(pool.pool))
            deployment = None if application is None else application["deployments"].get(UNIT_DEPLOYMENT)
            # A deployment that is still updating counts as deployed only when all have come that it is asked for.
            if deployment is not None and deployment["status"] != "UPDATING":
                self._follow(pool, deployment)

    def _follow(self, pool: PoolState, deployment: Any) -> None:  # noqa: ANN401  Serve has no types there
        wanted, target = pool.wanted * pool.units_per_node, deployment["target_num_replicas"]
        running = sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
        goal = number_asked(wanted=wanted, running=running, target=target)
        if goal != target:
            update_replicas(DeploymentID(name=UNIT_DEPLOYMENT, app_name=units_app(pool.pool)), goal)
            logger.info("units are wanted", extra={"pool": pool.pool, "units": goal, "before": target})
        surplus = running - wanted
        if surplus > 0 and pool.emptied:
            handle: Any = serve.get_deployment_handle(UNIT_DEPLOYMENT, app_name=units_app(pool.pool))
            if (
                not handle.is_initialized
            ):  # Serve returns the same one to who asks again; this is no event loop's thread
                handle._init(_run_router_in_separate_loop=True)
            handle.broadcast("retire", pool.emptied[:surplus]).results(timeout_s=_TIMEOUT_S, return_exceptions=True)
