"""A GPU that takes launches and does nothing: what Triton does before a launch can be timed without one."""

from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget

_SHARED_MEMORY_BYTES = 227 * 1024
_MOST_THREADS = 1024


def _launch(*arguments: object) -> None:
    pass


class SilentGpu:
    """Answers as Triton's driver for an sm_90. Kernels are compiled for it."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=self._properties)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Any:
        return _launch

    @staticmethod
    def _load(name: str, binary: bytes, shared_bytes: int, device: int) -> tuple[None, int, int, int, int]:
        return None, 1, 0, 0, _MOST_THREADS

    @staticmethod
    def _properties(device: int) -> dict[str, int]:
        return {"max_shared_mem": _SHARED_MEMORY_BYTES}
