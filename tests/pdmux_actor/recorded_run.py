"""Recording a run's `now` and `wait`, and playing it back to a fresh scheduler.

The scheduler is a function of what it is given, so a replay makes the same decisions: if it does not, something reads a
clock, iterates a set, or shares state it should not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pdmux_actor.engine import EventSource
from pdmux_actor.executor.base import Executor
from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import Event
from pdmux_actor.scheduling.launch import ComputeLaunch, DropPrefill, Launch, LaunchCompletion, Repartition


@dataclass(frozen=True, slots=True)
class RecordedCompletion:
    """A completion whose launch is named by its position among the run's compute launches."""

    launch_index: int
    started_s: float
    finished_s: float
    tokens: tuple[tuple[SampledToken, ...], ...]
    error: str | None
    sequence_errors: Mapping[int, str]
    prompt_logprobs: Mapping[int, tuple[PromptLogprob, ...]]
    embeddings: Mapping[int, bytes]


@dataclass(slots=True)
class Tape:
    """What a run was given, in the order in which it asked."""

    now_s: list[float] = field(default_factory=list)
    events: list[tuple[Event, ...]] = field(default_factory=list)  # per turn
    completions: list[tuple[RecordedCompletion, ...]] = field(default_factory=list)  # per turn


class RecordingExecutor:
    """Passes everything on to `inner` and writes the tape."""

    def __init__(self, inner: Executor, tape: Tape) -> None:
        self._inner = inner
        self._tape = tape
        self._launches: list[ComputeLaunch] = []

    def now(self) -> float:
        now_s = self._inner.now()
        self._tape.now_s.append(now_s)
        return now_s

    def submit(self, launch: Launch) -> None:
        if not isinstance(launch, Repartition | DropPrefill):
            self._launches.append(launch)
        self._inner.submit(launch)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        completions = self._inner.wait(deadline_s)
        self._tape.completions.append(tuple(self._record(done) for done in completions))
        return completions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _record(self, done: LaunchCompletion) -> RecordedCompletion:
        index = next(i for i, launch in enumerate(self._launches) if launch is done.launch)
        return RecordedCompletion(
            index,
            done.started_s,
            done.finished_s,
            done.tokens,
            done.error,
            done.sequence_errors,
            done.prompt_logprobs,
            done.embeddings,
        )


class RecordingEvents:
    def __init__(self, inner: EventSource, tape: Tape) -> None:
        self._inner = inner
        self._tape = tape

    def due(self, now_s: float) -> Iterable[Event]:
        events = tuple(self._inner.due(now_s))
        self._tape.events.append(events)
        return events

    def next_due_s(self) -> float | None:
        return self._inner.next_due_s()


class ReplayEvents:
    def __init__(self, tape: Tape) -> None:
        self._turns = iter(tape.events)

    def due(self, now_s: float) -> Iterable[Event]:
        return next(self._turns)

    def next_due_s(self) -> float | None:
        return None


class ReplayExecutor:
    """Gives back what the tape holds; computes nothing. Same device and pool as the run that was recorded."""

    def __init__(self, tape: Tape, recorded: Executor) -> None:
        self.device, self.total_blocks, self.block_bytes = recorded.device, recorded.total_blocks, recorded.block_bytes
        self.unpartitioned_reason = recorded.unpartitioned_reason
        self._now_s = iter(tape.now_s)
        self._completions = iter(tape.completions)
        self._launches: list[ComputeLaunch] = []

    def now(self) -> float:
        return next(self._now_s)

    def load_model(self, *_: object, **__: object) -> ModelInfo:
        raise AssertionError("the tape's AttachModel events carry the models")

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        """Nothing to prepare."""

    def detach_model(self, model: str) -> None:
        """Nothing to free."""

    def submit(self, launch: Launch) -> None:
        if not isinstance(launch, Repartition | DropPrefill):
            self._launches.append(launch)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        return [
            LaunchCompletion(
                launch=self._launches[done.launch_index],
                started_s=done.started_s,
                finished_s=done.finished_s,
                tokens=done.tokens,
                error=done.error,
                sequence_errors=done.sequence_errors,
                prompt_logprobs=done.prompt_logprobs,
                embeddings=done.embeddings,
            )
            for done in next(self._completions)
        ]

    def wake(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing runs."""
