"""Makes what an application of the fleet consists of: a deployment whose class none but its replicas import."""

from typing import Any, cast

from ray import cloudpickle, serve
from ray._raylet import (  # type: ignore[attr-defined]  # Ray's compiled module has no types
    AuthenticationMode,
    get_authentication_mode,
)
from ray.serve.config import RequestRouterConfig

from deploy.environment import allows_open_ray
from deploy.errors import OpenCluster


def replica_deployment(name: str, replica: str) -> serve.Deployment:
    """`replica` is the import path of the class. Serve would have the class itself: each of the tasks that build the
    applications would import what a replica runs. Raises OpenCluster.
    """
    _check_token()
    deployment = serve.deployment(name=name, request_router_config=_router_by_name())
    return deployment(cast(Any, replica))  # Serve's replicas take a path for a class; its types know of none


def _router_by_name() -> RequestRouterConfig:
    """Serve's own router; Serve would send all its code, 107 kB. What is as large as that stays in the object store of
    the node that an application was built on (of units: one of their pool, if it has labels), and Ray's autoscaler
    takes a node that holds an object for one that is used.
    """
    config = RequestRouterConfig()
    by_name: bytes = cloudpickle.dumps(config.get_request_router_class())  # type: ignore[no-untyped-call]  # Ray's
    config.set_serialized_request_router_cls(by_name)
    return config


def _check_token() -> None:
    if get_authentication_mode() != AuthenticationMode.TOKEN and not allows_open_ray():
        raise OpenCluster
