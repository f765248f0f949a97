"""Keeps what each lane was given and has not been read: a launch, and at most one more behind it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from pdmux_actor.executor.cuda.cuda_runner import Read
from pdmux_actor.executor.cuda.lane_device import Event
from pdmux_actor.executor.model_runner import Produced
from pdmux_actor.scheduling.launch import ComputeLaunch, LaunchCompletion


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedLaunch:
    """`event` None: it failed with `error`, and nothing of it is on the device."""

    launch: ComputeLaunch
    started_s: float
    event: Event | None = None
    read: Read = Produced
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.event is None or self.event.query()


class EnqueuedLaunches:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lanes: dict[int, deque[EnqueuedLaunch]] = {}  # by number; none is empty

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def __contains__(self, number: int) -> bool:
        return number in self._lanes

    def has_room(self, number: int, *, ahead: bool) -> bool:
        """`ahead`: for a launch that goes on where the one in flight ends."""
        return len(self._lanes.get(number, ())) == int(ahead)

    def add(self, number: int, launch: EnqueuedLaunch) -> None:
        self._lanes.setdefault(number, deque()).append(launch)

    def take_over(self) -> list[LaunchCompletion]:
        """Takes those that are over, of each lane in their order."""
        return [done for number in sorted(self._lanes) for done in self._take_of(number)]

    def _take_of(self, number: int) -> list[LaunchCompletion]:
        lane, done, started_s = self._lanes[number], list[LaunchCompletion](), 0.0
        while lane and lane[0].is_over:
            ended = lane.popleft()
            done.append(self._completion(ended, max(ended.started_s, started_s)))
            started_s = done[-1].finished_s
        if not lane:
            del self._lanes[number]
        elif done:  # the next one has begun now, whenever it was enqueued
            lane[0] = replace(lane[0], started_s=started_s)
        return done

    def _completion(self, ended: EnqueuedLaunch, started_s: float) -> LaunchCompletion:
        produced = ended.read()
        return LaunchCompletion(
            launch=ended.launch,
            started_s=started_s,
            finished_s=self._now(),
            tokens=produced.tokens,
            error=ended.error,
            sequence_errors=produced.errors,
            prompt_logprobs=produced.prompt_logprobs,
            embeddings=produced.embeddings,
        )
