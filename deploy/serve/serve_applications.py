"""The Serve applications. The `import_path`s of a rendered config name `muxfleet.serve_applications`."""

import msgspec
from ray import cloudpickle, serve
from ray._raylet import (  # type: ignore[attr-defined]  # Ray's compiled module has no types
    AuthenticationMode,
    get_authentication_mode,
)
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from deploy.environment import allows_open_ray, otlp_endpoint
from deploy.errors import OpenCluster
from deploy.fleet_file.setting_types import CPU_KV_BYTES
from deploy.log_lines import log_from_replica
from deploy.serve.app_args import (
    CONTROL_APP,
    CONTROLLER_DEPLOYMENT,
    GATEWAY_DEPLOYMENT,
    UNIT_DEPLOYMENT,
    GatewayArgs,
    UnitShape,
)
from deploy.serve.gateway_settings import BatchesHere, KeysOfFile
from pdmux_actor.backends.registry import backend_on
from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.serving.actor import ActorSettings
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.engine_watch import WatchSettings
from placement.unit_role import UnitRole
from router.batches.batch_settings import BatchSettings
from router.limits import GatewayLimits


def units_application(shape: UnitShape, *, unit: type[object]) -> Application:
    """Binds the units of one pool. Raises OpenCluster."""
    _check_token()
    settings = msgspec.to_builtins(actor_settings(shape))
    return serve.deployment(name=UNIT_DEPLOYMENT, request_router_config=_router_by_name())(unit).bind(settings)


def control_application(*, controller: type[object]) -> Application:
    """Raises OpenCluster."""
    _check_token()
    return serve.deployment(name=CONTROLLER_DEPLOYMENT, request_router_config=_router_by_name())(controller).bind(
        start_log=log_from_replica
    )


def gateway_application(args: GatewayArgs, *, gateway: type[object]) -> Application:
    """Raises OpenCluster."""
    _check_token()
    return serve.deployment(name=GATEWAY_DEPLOYMENT, request_router_config=_router_by_name())(gateway).bind(
        controller_deployment=CONTROLLER_DEPLOYMENT,
        controller_app=CONTROL_APP,
        limits=gateway_limits(args),
        read_keys=None if args.api_keys is None else KeysOfFile(path=args.api_keys),
        logs_requests=args.request_log,
        start_log=log_from_replica,
        otlp_endpoint=otlp_endpoint,
        cors_origins=args.cors_origins,
        batches=batches_here(args),
        has_console=args.console,
    )


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


def gateway_limits(args: GatewayArgs) -> GatewayLimits:
    return GatewayLimits(
        max_body_bytes=args.max_body_bytes,
        max_queued=args.max_queued_requests,
        hold_s=args.hold_s,
        template_timeout_s=args.template_timeout_s,
        suspect_s=args.unit_suspect_s,
        lost_s=args.unit_lost_s,
    )


def batches_here(args: GatewayArgs) -> BatchesHere:
    section = args.batches
    return BatchesHere(
        BatchSettings(
            url=section.folder or "",
            max_file_bytes=section.max_file_bytes,
            max_lines=section.max_lines,
            max_line_bytes=args.max_body_bytes,
            lines_at_once=section.lines_at_once,
            keep_s=section.keep_days * 86400 or None,
            max_key_bytes=section.max_key_bytes,
        )
    )


def actor_settings(shape: UnitShape) -> ActorSettings:
    return ActorSettings(
        engine=EngineSettings(
            kind=_engine_kind(shape),
            num_gpus=shape.num_gpus,
            sglang=msgspec.convert(shape.sglang or {}, SglangOptions),
            kv_pool_bytes=shape.kv_pool_bytes or _cpu_kv_bytes(shape),
            block_bytes=shape.block_bytes,
            dtype=shape.dtype,
            num_cores=shape.cores,
            device_type=shape.gpu_type,
            device_memory_bytes=shape.device_memory_bytes,
            host_memory_bytes=shape.host_memory_bytes,
            units_per_node=max(1, shape.gpus_per_node // shape.num_gpus),
            profile=shape.profile,
            guard=shape.guard,
            # Ranks are sent all inputs of a step, its tokens among them: no early steps there.
            scheduler=shape.scheduler_settings(
                shape.device, early_steps=shape.device == "cuda" and shape.num_gpus == 1
            ),
        ),
        pool=shape.pool,
        num_gpus=shape.num_gpus,
        controller=CONTROLLER_DEPLOYMENT,
        controller_app=CONTROL_APP,
        move_timeout_s=shape.drain.move_s,
        drain_timeout_s=shape.drain.finish_s,
        watch=WatchSettings(**shape.watch.model_dump()),
        role=UnitRole(shape.role or UnitRole.BOTH),
    )


def _cpu_kv_bytes(shape: UnitShape) -> int | None:
    """None: the plan sizes the pool of a GPU."""
    return int(CPU_KV_BYTES) if shape.device != "cuda" and shape.gpu_type is None else None


def _engine_kind(shape: UnitShape) -> str:
    return backend_on(shape.device, "native" if shape.sglang is None else "sglang").kinds[shape.device]
