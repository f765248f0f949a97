"""Errors of the profiler.

ProfilerError
├── UnsupportedModel   a checkpoint whose config.json the engine cannot serve
├── UnknownDevice      a device name that no file of profiler/gpus/ declares
└── ProfileUnusable    a file of measurements that cannot be read, or does not hold what is asked of it
"""


class ProfilerError(Exception):
    """Base of this package's errors."""


class UnsupportedModel(ProfilerError):
    """`config.json` describes a model that is not supported."""

    def __init__(self, *, field: str, value: str, remedy: str) -> None:
        super().__init__(f"config.json: {field}={value!r} is not supported: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class UnknownDevice(ProfilerError):
    def __init__(self, *, name: str, nearest: str | None, known: tuple[str, ...]) -> None:
        hint = f"did you mean {nearest!r}? " if nearest else ""
        super().__init__(f"device {name!r} is not known: {hint}known devices are {', '.join(known)}")
        self.name = name
        self.nearest = nearest
        self.known = known


class ProfileUnusable(ProfilerError):
    def __init__(self, *, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy
