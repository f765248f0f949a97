"""Models of an engine process whose weights wait in host memory."""

import logging
import time
from dataclasses import dataclass

from pdmux_actor.errors import HostMemoryShort, ModelTooLarge
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.lease import SleepingWeights
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.checkpoint import files_of
from pdmux_actor.serving.commands import LoadModelCommand

logger = logging.getLogger(__name__)

Files = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Says where a model's weights came from. `files` may have changed meanwhile."""

    command: LoadModelCommand
    files: Files

    @classmethod
    def of(cls, command: LoadModelCommand) -> "Origin":
        return cls(command=command, files=files_of(command.source))

    def gives_the_same(self, other: "Origin") -> bool:
        return self.files == other.files and _weights(self.command) == _weights(other.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sleeper:
    origin: Origin
    host_bytes: int


class SleepingModels:
    """Keeps the weights of models that sleep within `budget_bytes`. Used by one thread."""

    def __init__(self, executor: HostingExecutor, budget_bytes: int) -> None:
        self._executor = executor
        self._budget_bytes = budget_bytes
        self._asleep: dict[str, _Sleeper] = {}
        self._s_per_byte: float | None = None  # of the last way back; before the first, of the last way there
        self._has_woken = False

    def told(self) -> tuple[SleepingWeights, ...]:
        return tuple(
            SleepingWeights(model=model, host_bytes=sleeper.host_bytes, wake_s=self._wake_s(sleeper.host_bytes))
            for model, sleeper in self._asleep.items()
        )

    def put(self, model: str, origin: Origin) -> None:
        """While the model is still attached. What does not fit is not kept, and that is no error."""
        left_bytes = self._budget_bytes - sum(s.host_bytes for s in self._asleep.values())
        began_s = time.perf_counter()
        try:
            host_bytes = self._executor.sleep_model(model, left_bytes)
        except HostMemoryShort as short:
            logger.warning("a model is not kept in host memory", extra={"model": model, "reason": str(short)})
            return
        except Exception:
            # The model leaves the device whatever happens here; others are served on.
            logger.exception(
                "putting a model to sleep failed: it is read anew when it is wanted", extra={"model": model}
            )
            return
        took_s = time.perf_counter() - began_s
        if not self._has_woken:
            self._s_per_byte = took_s / max(1, host_bytes)
        self._asleep[model] = _Sleeper(origin=origin, host_bytes=host_bytes)
        logger.info(
            "a model sleeps in host memory", extra={"model": model, "bytes": host_bytes, "took_s": round(took_s, 3)}
        )

    def wake(self, model: str, origin: Origin) -> ModelInfo | None:
        """None: what sleeps here, if anything does, are not these weights, or it does not wake. It is gone then.

        Raises:
            ModelTooLarge: the device has no room now; it sleeps on.
        """
        sleeper = self._asleep.get(model)
        if sleeper is None:
            return None
        if not sleeper.origin.gives_the_same(origin):
            self.forget(model)
            return None
        began_s = time.perf_counter()
        try:
            info = self._executor.wake_model(model)
        except ModelTooLarge:
            raise
        except Exception:
            # Where several ranks hold it and one had no room, none of them has it any more.
            logger.exception("a model does not wake: it is read anew", extra={"model": model})
            self.forget(model)
            return None
        del self._asleep[model]
        took_s = time.perf_counter() - began_s
        self._s_per_byte, self._has_woken = took_s / max(1, sleeper.host_bytes), True
        told = {"model": model, "bytes": sleeper.host_bytes, "took_s": round(took_s, 3)}
        logger.info("a model is awake, from host memory", extra=told)
        return info

    def forget(self, model: str) -> None:
        if self._asleep.pop(model, None) is not None:
            self._executor.forget_sleeper(model)

    def forget_all(self) -> bool:
        """False: none slept."""
        models = tuple(self._asleep)
        for model in models:
            self.forget(model)
        return bool(models)

    def _wake_s(self, host_bytes: int) -> float:
        copies_per_s = self._executor.device.host_copy_bytes_per_s
        if not self._has_woken and copies_per_s:
            return host_bytes / copies_per_s
        return host_bytes * (self._s_per_byte or 0.0)


def _weights(command: LoadModelCommand) -> tuple[str | int | None, ...]:
    return command.model, command.source, command.revision, command.dtype, command.weights, command.max_model_len
