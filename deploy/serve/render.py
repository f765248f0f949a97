"""A fleet file as the config that `serve deploy` takes."""

from collections.abc import Mapping
from typing import Any

import yaml

from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.local.ray_environment import HAPROXY
from deploy.planning.profiled_costs import profiles_of
from deploy.serve.app_args import (
    CONTROL_APP,
    CONTROLLER_DEPLOYMENT,
    GATEWAY_APP,
    GATEWAY_DEPLOYMENT,
    UNIT_DEPLOYMENT,
    GatewayArgs,
    UnitShape,
    units_app,
)
from deploy.serve.controller_config import ControllerConfig, PoolNodes

# A crashed replica is replaced after one period, one whose loop stands after three timeouts (Serve's defaults: 10 s and
# 30 s), at once with RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1, else after its drain. Each check runs on that loop.
_UNIT_HEALTH: Mapping[str, float] = {"health_check_period_s": 1.0, "health_check_timeout_s": 5.0}
_CONTROLLER_HEALTH: Mapping[str, float] = {"health_check_period_s": 1.0, "health_check_timeout_s": 5.0}
_QUICK_SHUTDOWN: Mapping[str, float] = {"graceful_shutdown_wait_loop_s": 0.5, "graceful_shutdown_timeout_s": 10.0}
_ONE_BY_ONE = 0.01  # of a deployment's units, but at least one: the others serve meanwhile
# Control calls only; Serve's default of 5 would queue them behind each other.
_CONTROL_CALLS = 1000
_STREAMS_PER_GATEWAY = 10_000
_SMALL_CPUS = 0.1


def serve_config(fleet: FleetFile) -> dict[str, Any]:
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": fleet.gateway.host, "port": fleet.gateway.port},
        "logging_config": {"log_level": "INFO", "enable_access_log": False},
        "applications": [
            *(_units_application(fleet, p) for p in fleet.pools),
            _control_application(fleet),
            _gateway_application(fleet),
        ],
    }


def as_large_as_now(config: dict[str, Any], fleet: FleetFile, units: Mapping[str, int]) -> dict[str, Any]:
    """Keeps the sizes of pools that follow demand: by application the units of now, within the file's bounds."""
    elastic = {units_app(p.name): p for p in fleet.pools if is_elastic(p)}
    applications = []
    for app in config["applications"]:
        pool = elastic.get(app["name"])
        if pool is not None and app["name"] in units:
            number = min(max(units[app["name"]], pool.num_units), pool.most_units)
            app = {**app, "deployments": [{**d, "num_replicas": number} for d in app["deployments"]]}
        applications.append(app)
    return {**config, "applications": applications}


def serve_yaml(fleet: FleetFile) -> str:
    header = "# Written by `muxfleet render`. For `serve deploy`.\n"
    if fleet.gateway.proxy != "python":
        flags = " ".join(f"{k}={v}" for k, v in HAPROXY.items())
        header += f"# The head, the workers and this command need {flags}\n"
        header += "# and RAY_SERVE_HAPROXY_BINARY_PATH, the path of muxfleet-haproxy there.\n"
    header += f"# A node that shall go has {fleet.drain.pod_s:g} s from SIGTERM to its kill; Ray on it needs\n"
    header += f"# RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S={fleet.drain.node_s:g}.\n"
    return header + yaml.safe_dump(serve_config(fleet), sort_keys=False, width=120)


def without_node_labels(fleet: FleetFile) -> FleetFile:
    """Removes node labels, for a machine that stands for all pools at once."""
    pools = tuple(p.model_copy(update={"node_labels": {}}) for p in fleet.pools)
    return fleet.model_copy(update={"pools": pools, "gateway": fleet.gateway.model_copy(update={"node_labels": {}})})


def logical_cpus(fleet: FleetFile) -> float:
    """Returns what the whole fleet asks of Ray's scheduler."""
    units = sum(p.most_units * _unit_cpus(p) for p in fleet.pools)
    return units + _SMALL_CPUS * (fleet.gateway.replicas + 1)


def controller_config(fleet: FleetFile) -> ControllerConfig:
    return ControllerConfig.of(
        fleet.engine,
        fleet.gateway,
        fleet,
        expected_units={p.name: p.num_units for p in fleet.pools},
        profiles=dict(profiles_of(fleet)) or None,
        pools=_pool_nodes(fleet) or None,
    )


def _pool_nodes(fleet: FleetFile) -> dict[str, PoolNodes]:
    if not any(is_elastic(p) for p in fleet.pools):
        return {}
    return {
        p.name: PoolNodes(nodes=p.nodes, scaling=p.scaling, devices_per_node=p.devices_per_node, mesh_gpus=p.mesh_gpus)
        for p in fleet.pools
    }


def is_elastic(pool: PoolSection) -> bool:
    return (pool.nodes.max or pool.nodes.min) > pool.nodes.min


def application_names(fleet: FleetFile) -> tuple[str, ...]:
    return (*(units_app(p.name) for p in fleet.pools), CONTROL_APP, GATEWAY_APP)


def _units_application(fleet: FleetFile, pool: PoolSection) -> dict[str, Any]:
    """Each pool has one: Serve restarts all of an application whose `args` change, and nothing of the others."""
    return {
        "name": units_app(pool.name),
        "route_prefix": None,
        "import_path": "muxfleet.serve_applications:build_units",
        "args": _unit_shape(fleet, pool).model_dump(mode="json", exclude_none=True),
        "deployments": [_unit_deployment(fleet, pool)],
        **({"external_scaler_enabled": True} if is_elastic(pool) else {}),
    }


def _unit_shape(fleet: FleetFile, pool: PoolSection) -> UnitShape:
    is_sglang = fleet.backend(pool).name == "sglang"
    return UnitShape.of(
        pool,
        fleet.engine,
        fleet,
        pool=pool.name,
        num_gpus=pool.mesh_gpus,
        sglang=pool.sglang.model_dump(mode="json", exclude_defaults=True) if is_sglang else None,
        kv_pool_bytes=pool.kv_memory,
        device_memory_bytes=pool.device_memory,
        host_memory_bytes=pool.host_memory,
    )


def _unit_deployment(fleet: FleetFile, pool: PoolSection) -> dict[str, Any]:
    actor: dict[str, Any] = {"num_cpus": _unit_cpus(pool)}
    if pool.device == "cuda":
        actor["num_gpus"] = pool.mesh_gpus
    if pool.node_labels:
        actor["label_selector"] = dict(pool.node_labels)
    return {
        "name": UNIT_DEPLOYMENT,
        "num_replicas": pool.num_units,
        "max_ongoing_requests": _CONTROL_CALLS,
        "ray_actor_options": actor,
        "rolling_update_percentage": _ONE_BY_ONE,
        **_units_on_a_node(pool),
        **_UNIT_HEALTH,
        **_grace(fleet.drain.unit_s),
    }


def _units_on_a_node(pool: PoolSection) -> dict[str, int]:
    """Ray counts GPUs, and so does not put more on a node than belong there. Of other devices a first node would take
    all units of a pool that grows, and no second one would ever come. Serve restarts units when this changes, so that
    it does not depend on whether the pool grows. Without labels one machine stands for all nodes.
    """
    if pool.device == "cuda" or not pool.node_labels:
        return {}
    return {"max_replicas_per_node": pool.devices_per_node // pool.mesh_gpus}


def _unit_cpus(pool: PoolSection) -> float:
    return float(pool.cores or pool.mesh_gpus) if pool.device == "cpu" else _SMALL_CPUS


def _gateway_application(fleet: FleetFile) -> dict[str, Any]:
    gateway = fleet.gateway
    actor: dict[str, Any] = {"num_cpus": _SMALL_CPUS}
    if gateway.node_labels:
        actor["label_selector"] = dict(gateway.node_labels)
    args = GatewayArgs.of(gateway, fleet)
    return {
        "name": GATEWAY_APP,
        "route_prefix": "/",
        "import_path": "muxfleet.serve_applications:build_gateway",
        "args": args.model_dump(mode="json") | {"batches": args.batches.model_dump(mode="json", exclude_none=True)},
        "deployments": [
            {
                "name": GATEWAY_DEPLOYMENT,
                "num_replicas": gateway.replicas,
                "max_ongoing_requests": _STREAMS_PER_GATEWAY,
                "max_surge_percent": 100,
                "ray_actor_options": actor,
                "health_check_period_s": 2.0,
                "health_check_timeout_s": 5.0,
                **_grace(fleet.drain.gateway_s),
            }
        ],
    }


def _control_application(fleet: FleetFile) -> dict[str, Any]:
    """It has no `args`: nothing in a fleet file replaces the control loop."""
    return {
        "name": CONTROL_APP,
        "route_prefix": None,
        "import_path": "muxfleet.serve_applications:build_control",
        "args": {},
        "deployments": [
            {
                "name": CONTROLLER_DEPLOYMENT,
                "num_replicas": 1,
                "max_ongoing_requests": _CONTROL_CALLS,
                "user_config": controller_config(fleet).as_user_config(),
                "ray_actor_options": {"num_cpus": _SMALL_CPUS},
                **_CONTROLLER_HEALTH,
                **_QUICK_SHUTDOWN,
            },
        ],
    }


def _grace(timeout_s: float) -> dict[str, float]:
    return {"graceful_shutdown_wait_loop_s": 0.5, "graceful_shutdown_timeout_s": timeout_s}
