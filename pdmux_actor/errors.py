"""Errors of the engine.

EngineError
├── ModelLoadError     a checkpoint cannot be served: missing, broken, unsupported or too large
│   ├── ModelTooLarge  there is not enough memory for it
│   └── BaseNotHere    of an adapter: the model that it belongs to is not on the unit
├── HostMemoryShort    host memory does not take a model's weights
├── InvalidStructuredOutput  the form that an output is to have cannot be compiled or followed
├── LaunchFailed       a launch that was to be measured failed
├── EngineStartFailed  the engine process did not come up
├── EngineDied         the engine process is gone
├── DeviceUnavailable  the GPU, or a package that drives it, is not there
├── PartitioningUnavailable  the GPU's SMs cannot be partitioned by green contexts
├── StreamRefused      a unit's frame stream refused the connection (token, version)
└── UnitLost           the frame stream of a unit broke or went silent
    └── UnitStalled    it is there, but its engine makes no progress
"""

import signal


class EngineError(Exception):
    """Base of this package's errors."""


class ModelLoadError(EngineError):
    def __init__(self, *, model: str, reason: str, remedy: str) -> None:
        super().__init__(f"model {model!r} does not load: {reason}; {remedy}")
        self.model = model
        self.reason = reason
        self.remedy = remedy


class ModelTooLarge(ModelLoadError):
    """There is not enough memory for it now."""


class BaseNotHere(ModelLoadError):
    """Its base was never there, or did not fit when it was attached."""

    def __init__(self, *, model: str, base: str) -> None:
        remedy = "lease the base with it, and no adapter as a base"
        super().__init__(model=model, reason=f"its base {base!r} is not on this unit", remedy=remedy)


class HostMemoryShort(EngineError):
    def __init__(self, *, model: str, needed_bytes: int, admitted_bytes: int) -> None:
        super().__init__(
            f"model {model!r} cannot sleep here: its weights take {needed_bytes} bytes of host memory, "
            f"{max(0, admitted_bytes)} are left; raise pools[].host_memory or give the node more memory"
        )
        self.model = model
        self.needed_bytes = needed_bytes
        self.admitted_bytes = admitted_bytes


class InvalidStructuredOutput(EngineError):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LaunchFailed(EngineError):
    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"a launch of model {model!r} failed: {reason}; the log above has the traceback")
        self.model = model
        self.reason = reason


def _end_of_process(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL, as by the kernel when memory runs out"
    if exit_code is not None and -exit_code in set(signal.Signals):
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


class EngineDied(EngineError):
    """`hang`: it was killed because it made no progress, and this is how that showed."""

    def __init__(self, *, pid: int | None, exit_code: int | None, hang: str | None = None) -> None:
        end = _end_of_process(exit_code) if hang is None else f"hung and was killed: {hang}"
        super().__init__(f"engine process {pid} {end}; Serve restarts its unit")
        self.pid = pid
        self.exit_code = exit_code
        self.hang = hang


class DeviceUnavailable(EngineError):
    def __init__(self, *, reason: str, remedy: str) -> None:
        super().__init__(f"no CUDA device to serve on: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class PartitioningUnavailable(EngineError):
    def __init__(self, *, call: str, reason: str, remedy: str) -> None:
        super().__init__(f"{call}: {reason}; {remedy}")
        self.call = call
        self.reason = reason
        self.remedy = remedy


class StreamRefused(EngineError):
    def __init__(self, *, endpoint: str, reason: str) -> None:
        super().__init__(f"unit at {endpoint} refused the stream: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class UnitLost(EngineError):
    def __init__(self, *, endpoint: str, reason: str) -> None:
        super().__init__(f"lost the unit at {endpoint}: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class UnitStalled(UnitLost):
    pass


class EngineStartFailed(EngineError):
    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the engine process did not start: {reason}")
        self.reason = reason
