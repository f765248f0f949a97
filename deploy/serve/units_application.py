"""The Serve application of a pool's units."""

import msgspec
from ray.serve import Application

from deploy.fleet_file.size_types import CPU_KV_BYTES
from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT, UNIT_DEPLOYMENT, UnitShape
from deploy.serve.replica_deployment import replica_deployment
from pdmux_actor.backends.registry import backend_on
from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.serving.actor import ActorSettings
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.engine_watch import WatchSettings
from placement.unit_role import UnitRole


def units_application(shape: UnitShape, *, replica: str) -> Application:
    """Binds the units of one pool. Raises OpenCluster."""
    settings = msgspec.to_builtins(actor_settings(shape))
    return replica_deployment(UNIT_DEPLOYMENT, replica).bind(settings)


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
