"""Makes Serve run as many units of a pool as the control loop wants, and end those that it has emptied and no other.

Serve chooses by itself which of its replicas a lower number ends: first any that it does not call running. So a unit
that shall go first says that it is not healthy any more; the number is lowered when no more units run than are wanted,
and what Serve ends then is the replica that it is starting in the unit's place. A unit may serve before Serve calls it
running: while one of these is not to go, the number stays. Where Ray has an autoscaler, replicas that wait for a node
make it add one, and it takes away nodes on which nothing runs.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray import serve
from ray.serve._private.common import DeploymentID

from deploy.control.pool_scaling import PoolState
from deploy.serve.app_args import UNIT_DEPLOYMENT, units_app
from deploy.serve.serve_calls import serve_details, update_replicas
from deploy.serve.unit_ids import unit_id_of

logger = logging.getLogger(__name__)

_TIMEOUT_S = 8.0
# Of replicas that count as units: after a restart of Serve's own controller all are recovering for a while.
_ALIVE = frozenset({"RUNNING", "UPDATING", "RECOVERING"})
_ENDED_FIRST = frozenset({"STARTING", "RECOVERING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDeployment:
    """Counts a pool's units as Serve does: how many it shall run, and how many of these are alive. `ended_first`: the
    units of replicas that a lower number would end before any other; in which order, Serve leaves open.
    """

    target: int
    alive: int
    is_updating: bool
    ended_first: frozenset[str] = frozenset()


class ServedUnits(Protocol):
    """Each call raises what Ray's client raises."""

    def deployments(self) -> Mapping[str, PoolDeployment]:
        """Returns them by pool."""
        ...

    def ask(self, pool: str, number: int) -> None:
        """Tells Serve to run so many units of a pool."""
        ...

    def retire(self, pool: str, unit_ids: Sequence[str]) -> None:
        """Tells these units to say that they are not healthy any more."""
        ...


def number_asked(*, wanted: int, running: int, target: int) -> int:
    """Returns what Serve is asked for instead of `target`: never fewer than run, so that it chooses none of them."""
    return max(wanted, min(running, target))


class UnitReplicas:
    """Blocks while it talks to Serve."""

    def __init__(self, units: ServedUnits | None = None) -> None:
        self._units = units or UnitsOfServe()
        self._started: frozenset[str] = frozenset()

    def follow(self, pools: Sequence[PoolState]) -> None:
        """Raises what Ray's client raises."""
        elastic = [p for p in pools if p.most > p.least and not p.shadow]
        if not elastic:
            return
        deployments = self._units.deployments()
        self._started |= {p for p, d in deployments.items() if not d.is_updating}
        for pool in elastic:
            deployment = deployments.get(pool.pool)
            if deployment is not None and self._has_started(pool, deployment):
                self._follow(pool, deployment)

    def _has_started(self, pool: PoolState, deployment: PoolDeployment) -> bool:
        """A fleet that starts counts as started only when all have come that it is asked for: more are asked for
        afterwards. A later update, unit after unit, may take hours, for which demand does not wait.
        """
        return pool.pool in self._started or deployment.alive >= pool.least * pool.units_per_node

    def _follow(self, pool: PoolState, deployment: PoolDeployment) -> None:
        """Of a unit's death Serve or the control loop learns first: no unit ends for one that only one of them sees."""
        wanted, target = pool.wanted * pool.units_per_node, deployment.target
        goal = number_asked(wanted=wanted, running=deployment.alive, target=target)
        if goal > target or (goal < target and not self._would_end_one_that_holds_models(pool, deployment)):
            self._units.ask(pool.pool, goal)
            logger.info("units are wanted", extra={"pool": pool.pool, "units": goal, "before": target})
        surplus = min(deployment.alive, pool.present * pool.units_per_node) - wanted
        if surplus > 0 and pool.emptied:
            self._units.retire(pool.pool, pool.emptied[:surplus])

    @staticmethod
    def _would_end_one_that_holds_models(pool: PoolState, deployment: PoolDeployment) -> bool:
        """Serve calls a unit running only when it has what it shall hold, or after `settle_timeout_s`."""
        return not deployment.ended_first.isdisjoint(set(pool.units) - set(pool.emptied))


class UnitsOfServe:
    """Reaches those of the cluster of this process."""

    def deployments(self) -> Mapping[str, PoolDeployment]:
        found = {}
        for name, application in serve_details()["applications"].items():
            deployment = application["deployments"].get(UNIT_DEPLOYMENT)
            if deployment is not None and name.startswith(units_app("")):
                pool, replicas = name.removeprefix(units_app("")), deployment["replicas"]
                found[pool] = PoolDeployment(
                    target=deployment["target_num_replicas"],
                    alive=sum(replica["state"] in _ALIVE for replica in replicas),
                    is_updating=deployment["status"] == "UPDATING",
                    ended_first=frozenset(
                        unit_id_of(pool, r["replica_id"]) for r in replicas if r["state"] in _ENDED_FIRST
                    ),
                )
        return found

    def ask(self, pool: str, number: int) -> None:
        update_replicas(DeploymentID(name=UNIT_DEPLOYMENT, app_name=units_app(pool)), number)

    def retire(self, pool: str, unit_ids: Sequence[str]) -> None:
        handle: Any = serve.get_deployment_handle(UNIT_DEPLOYMENT, app_name=units_app(pool))
        if not handle.is_initialized:  # Serve returns the same one to who asks again; this is no event loop's thread
            handle._init(_run_router_in_separate_loop=True)
        handle.broadcast("retire", tuple(unit_ids)).results(timeout_s=_TIMEOUT_S, return_exceptions=True)
