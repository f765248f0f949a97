"""Errors of the profiler.

ProfilerError
└── UnsupportedModel   a checkpoint whose config.json the engine cannot serve
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
