"""The engine's own process. An actor starts it and talks to it over an inherited socket:

    python -m pdmux_actor.serving.process FD SETTINGS_JSON

It ends with the actor: at end-of-file on the socket, or by the kernel's parent-death signal.
"""

import gc
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from pdmux_actor.engine import build_engine
from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.serving.command_intake import CommandIntake
from pdmux_actor.serving.commands import EngineSettings, LoadReported, Started
from pdmux_actor.serving.engine_log import log_to_actor
from pdmux_actor.serving.executors import build_executor
from pdmux_actor.serving.host_budget import host_memory_budget
from pdmux_actor.serving.known_latency import ContentionStore, read_known_latency
from pdmux_actor.serving.loaded_models import LoadedModels
from pdmux_actor.serving.model_forms import ModelForms
from pdmux_actor.serving.notice_sender import NoticeSender
from pdmux_actor.serving.parent_death import die_with_parent
from pdmux_actor.serving.structured_requests import StructuredRequests
from placement.estimation.memory import fillable_bytes
from profiler.devices import DEVICES
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec

_FLUSH_TIMEOUT_S = 5.0


def _measured(executor: HostingExecutor) -> DeviceSpec | None:
    """What a GPU that no table has was found to do. Of cores nothing: they may do other work later."""
    return None if executor.memory_is_host or executor.device.name in DEVICES else executor.device


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the actor decides
    log_to_actor()
    connection = socket.socket(fileno=int(arguments[0]))
    settings = msgspec.json.decode(arguments[1], type=EngineSettings)
    sender = NoticeSender(connection)
    known = None if settings.profile is None else read_known_latency(settings.profile)
    try:
        executor = build_executor(settings, known)
    except DeviceUnavailable as error:
        sys.exit(str(error))  # the actor reports the last words
    if known is not None:
        known.check_device(executor.device)
    keeper = ContentionStore(settings.guard, executor.device, None if known is None else known.guard)
    loop, inbox = build_engine(
        executor,
        policy=settings.policy,
        settings=settings.scheduler,
        latency=RooflineLatency(executor.device, num_gpus=settings.num_gpus) if known is None else known.latency,
        guard=keeper.guard,
        outbox=sender.send_tokens,
        on_load_report=lambda report: sender.send(LoadReported(report)),
        on_detached=lambda model: loaded_models.on_detached(model),
        idle_report_s=settings.idle_report_s,
        num_ranks=1 if settings.kind == "simulated" else settings.num_gpus,
    )
    host_bytes = host_memory_budget(settings, executor.device)
    forms = ModelForms()
    loaded_models = LoadedModels(
        executor,
        inbox,
        sender,
        host_memory_bytes=host_bytes,
        on_loaded=forms.offer,
        on_left=forms.forget,
    )
    structured = StructuredRequests(forms.compile, inbox, lambda event: sender.send_tokens([event]))
    sender.send(
        Started(
            device=executor.device.name,
            memory_bytes=settings.device_memory_bytes or _device_bytes(settings, executor) * settings.num_gpus,
            block_bytes=executor.block_bytes,
            total_blocks=executor.total_blocks,
            constrains=True,
            host_memory_bytes=host_bytes,
            measured_device=_measured(executor),
            sizes_pool=settings.kv_pool_bytes is None,
        )
    )
    CommandIntake(connection, inbox, loaded_models, sender, structured).start()
    # Two hundred thousand objects of torch and its like outlive the process: a full collection that went through them
    # would hold every stream for 0.1 to 0.4 s.
    gc.collect()
    gc.freeze()
    loop.run()
    keeper.keep()
    sender.flush(_FLUSH_TIMEOUT_S)


def _device_bytes(settings: EngineSettings, executor: HostingExecutor) -> int:
    """Of one device. A GPU's executor has left out what it keeps for itself; where it is simulated, that is done here
    if models and pool are to fill it.
    """
    device_bytes = executor.device.memory_bytes
    fills = settings.kind == "simulated" and settings.kv_pool_bytes is None
    return fillable_bytes(device_bytes) if fills else device_bytes


if __name__ == "__main__":
    main(sys.argv[1:])
