"""Works out how much host memory an engine process may fill with weights that sleep."""

from pdmux_actor.executor.host_memory import host_memory_bytes
from pdmux_actor.serving.commands import EngineSettings
from placement.host_memory import host_share_bytes, host_share_of_gpus
from profiler.specs import DeviceSpec


def host_memory_budget(settings: EngineSettings, device: DeviceSpec) -> int:
    """A GPU that is simulated stands in a node of its kind, not in this machine."""
    if settings.host_memory_bytes is not None:
        return settings.host_memory_bytes
    if settings.kind == "simulated" and settings.device_type is not None:
        return host_share_of_gpus(device, settings.num_gpus)
    return host_share_bytes(host_memory_bytes(), settings.units_per_node)
