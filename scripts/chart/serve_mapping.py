"""helm/files/fleet.json: what the chart's templates must know to make of a fleet what `muxfleet render` makes of it.

Types and defaults of the fleet file, which argument comes from which key, and the options that are the same for every
fleet. The templates do the rest; a test compares their result with `muxfleet render`.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.section import DrainSection
from deploy.fleet_file.settings import (
    EngineSection,
    FleetFile,
    GatewaySection,
    PlacementSection,
    PoolSection,
    semantic_problems,
)
from deploy.fleet_file.size_types import CPU_KV_BYTES
from deploy.local.ray_environment import HAPROXY
from deploy.serve.app_args import UNIT_DEPLOYMENT, Args, GatewayArgs, UnitShape, units_app
from deploy.serve.controller_config import ControllerConfig
from deploy.serve.render import serve_config
from profiler.devices import DEVICES
from scripts.chart.values import OLDEST_RAY

# Arguments that the templates work out, or that bear another name in the fleet file.
_COMPUTED: Mapping[type[Args], frozenset[str]] = {
    UnitShape: frozenset({"sglang"}),
    ControllerConfig: frozenset({"models", "expected_units", "profiles", "pools"}),
    GatewayArgs: frozenset(),
}
_RENAMED: Mapping[str, str] = {
    "pool": "pool.name",
    "num_gpus": "pool.mesh_gpus",
    "kv_pool_bytes": "pool.kv_memory",
    "device_memory_bytes": "pool.device_memory",
    "host_memory_bytes": "pool.host_memory",
}
_SECTIONS: Mapping[type[Args], Sequence[tuple[str, type[BaseModel]]]] = {
    UnitShape: (("pool", PoolSection), ("engine", EngineSection), ("fleet", FleetFile)),
    ControllerConfig: (
        ("engine", EngineSection),
        ("placement", PlacementSection),
        ("fleet", FleetFile),
        ("gateway", GatewaySection),
    ),
    GatewayArgs: (("gateway", GatewaySection), ("fleet", FleetFile)),
}
_COMPUTED_OPTIONS = frozenset({"num_replicas", "ray_actor_options", "user_config", "graceful_shutdown_timeout_s"})
_AT_ONCE = DrainSection(move_s=0, finish_s=0)  # what is left are the times that are the same for every fleet


class UnmappedArgument(LookupError):
    """An argument of the Serve config has no key of the same name: extend _RENAMED or the chart's templates."""


def chart_files_data() -> dict[str, Any]:
    probe = FleetFile.model_validate({"models": [{"id": "probe", "source": "probe/probe"}]})
    config = serve_config(probe)
    units, control, gateway = config["applications"]
    return {
        "types": _types_of(FleetFile),
        "byteUnits": {unit: factor for unit, factor in ByteSize.byte_sizes.items() if float(factor).is_integer()},
        "unitArguments": _sources(UnitShape),
        "controllerArguments": _sources(ControllerConfig),
        "gatewayArguments": _sources(GatewayArgs),
        "config": {k: v for k, v in config.items() if k not in {"applications", "http_options"}},
        "applications": {
            "units": _same_everywhere(units) | {"name": units_app("")},
            "control": _same_everywhere(control) | {"args": control["args"]},
            "gateway": _same_everywhere(gateway),
        },
        "deployments": {
            UNIT_DEPLOYMENT: _options(units["deployments"][0]),
            **{
                d["name"]: _options(d) | {"ray_actor_options": d["ray_actor_options"]}
                for d in (*control["deployments"], *gateway["deployments"])
            },
        },
        "drainSeconds": {
            "unit": _AT_ONCE.unit_s,
            "gateway": _AT_ONCE.gateway_s,
            "node": _AT_ONCE.node_s,
            "pod": _AT_ONCE.pod_s,
        },
        "controllerGrace": control["deployments"][0]["graceful_shutdown_timeout_s"],
        "smallCpus": gateway["deployments"][0]["ray_actor_options"]["num_cpus"],
        "cpuKvBytes": int(CPU_KV_BYTES),
        "gpuTypes": sorted(DEVICES),
        "gpuBytes": {name.lower(): device.memory_bytes for name, device in sorted(DEVICES.items())},
        "refusals": {
            "mesh": dict(_undivided()),
        },
        "haproxyEnvironment": dict(HAPROXY),
        "oldestRay": OLDEST_RAY,
    }


def _refusal(pool: PoolSection, *path: str) -> str:
    """What this release says of a key of a pool; empty when it takes the value."""
    probe = FleetFile(models=(ModelSection(id="probe", source="probe/probe"),), pools=(pool,))
    return next((p.remedy for p in semantic_problems(probe) if p.path == ("pools", 0, *path)), "")


def _undivided() -> Iterator[tuple[str, str]]:
    """By backend and device: what this release says of units of several where it divides no model."""
    for backend, device in (("native", "cpu"), ("native", "cuda"), ("sglang", "cpu"), ("sglang", "cuda")):
        pool = PoolSection(device=device, backend=backend, gpu_type=_gpu_of(device), gpus_per_node=2, mesh_gpus=2)
        if remedy := _refusal(pool, "mesh_gpus"):
            yield f"{backend} {device}", remedy


def _gpu_of(device: str) -> str | None:
    return None if device == "cpu" else next(iter(DEVICES))


def _sources(args: type[Args]) -> dict[str, str]:
    """By argument: section and key."""
    found = {}
    for name in args.model_fields:
        if name in _COMPUTED[args]:
            continue
        keys = [f"{section}.{name}" for section, model in _SECTIONS[args] if name in model.model_fields]
        if name in _RENAMED and args is UnitShape:
            keys = [_RENAMED[name]]
        if not keys:
            raise UnmappedArgument(f"{args.__name__}.{name}")
        found[name] = keys[0]
    return found


def _same_everywhere(application: Mapping[str, Any]) -> dict[str, Any]:
    return {k: application[k] for k in ("name", "route_prefix", "import_path")}


def _options(deployment: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in deployment.items() if k not in _COMPUTED_OPTIONS}


def _types_of(root: type[BaseModel]) -> dict[str, Any]:
    """By section class: its keys, each with a default and how its value is read."""
    seen: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        model = waiting.pop()
        if model.__name__ in seen:
            continue
        keys: dict[str, Any] = {}
        for name, field in model.model_fields.items():
            kind, section = _kind(field.annotation)
            keys[name] = {"kind": kind}
            if section is not None:
                keys[name]["type"] = section.__name__
                waiting.append(section)
            if (default := _default(field)) is not None:
                keys[name]["default"] = default
        seen[model.__name__] = keys
    return {name: seen[name] for name in sorted(seen)}


def _kind(annotation: Any) -> tuple[str, type[BaseModel] | None]:  # noqa: ANN401  annotations have no common type
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [_kind(a) for a in arguments if a is not types.NoneType]
        return next((k for k in kinds if k[0] != "value"), kinds[0])
    if origin in (tuple, list):
        section = _kind(arguments[0])[1]
        return ("sections", section) if section is not None else ("value", None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section", annotation
    return ("bytes", None) if annotation is ByteSize else ("value", None)


def _default(field: FieldInfo) -> Any:  # noqa: ANN401  of any JSON type
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None:
        return None
    return _changed(default)


def _changed(default: Any) -> Any:  # noqa: ANN401  of any JSON type
    """Without what the section's own defaults say."""
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", exclude_defaults=True)
    return [_changed(item) for item in default] if isinstance(default, tuple) else default
