"""AlpaServe's simulator (OSDI'23, §4.1): requests through groups of GPUs that are pipelines.

A group of p stages, each a tensor-parallel group, has p batches under way. Stages send each other next to nothing, so a
batch alone takes the sum of its stages; with p under way one comes through per slowest stage, and each takes p times as
long as that. So a group is p servers, each of which serves a batch in p times the slowest stage. Batches are of one
model and run to their end (time is shared, SMs are not), the oldest request first, with as many as end in time. A
request goes to the shortest queue; one that would come too late alone when its turn comes is dropped, as AlpaServe's
groups do.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Arrival = tuple[float, int]
"""Seconds, and the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """A batch of b requests takes `fixed_s + b * per_request_s` of a server; it has at most `most_requests`."""

    fixed_s: float
    per_request_s: float
    most_requests: int

    def seconds(self, requests: int) -> float:
        return self.fixed_s + requests * self.per_request_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOutcome:
    """`in_time` and `missed` count requests by model; `busy_s` are seconds of a server's time, by group."""

    in_time: Mapping[int, int]
    missed: Mapping[int, int]
    busy_s: Sequence[float]


def run_pipelines(
    groups: Sequence[Mapping[int, BatchTime]],
    arrivals: Sequence[Arrival],
    deadlines_s: Mapping[int, float],
    *,
    stages: Sequence[int],
) -> PipelineOutcome:
    """`groups` has what batches of each model take that a group holds, `stages` how many batches it has under way;
    `arrivals` are in order. A request must end `deadlines_s` of its model after it came.
    """
    in_time, missed = defaultdict[int, int](int), defaultdict[int, int](int)
    running = [_Group(times, num, in_time, missed, deadlines_s) for times, num in zip(groups, stages, strict=True)]
    holders = {model: [g for g in running if model in g.times] for _, model in arrivals}
    for at_s, model in arrivals:
        for group in holders[model]:
            group.start_until(at_s)
        if not holders[model]:
            missed[model] += 1
            continue
        min(holders[model], key=_Group.queue).take(at_s, model)
    for group in running:
        group.start_until(float("inf"))
    return PipelineOutcome(in_time=in_time, missed=missed, busy_s=[g.busy_s for g in running])


class _Group:
    def __init__(
        self,
        times: Mapping[int, BatchTime],
        stages: int,
        in_time: dict[int, int],
        missed: dict[int, int],
        deadlines_s: Mapping[int, float],
    ) -> None:
        self.times = times
        self.busy_s = 0.0
        self._waiting: dict[int, deque[float]] = {}
        self._num_waiting = 0
        self._free_s = [0.0] * stages
        self._in_time, self._missed, self._deadlines_s = in_time, missed, deadlines_s

    def queue(self) -> tuple[int, float]:
        """Requests that wait, and when a server is free."""
        return self._num_waiting, self._free_s[0]

    def take(self, at_s: float, model: int) -> None:
        self._waiting.setdefault(model, deque()).append(at_s)
        self._num_waiting += 1

    def start_until(self, now_s: float) -> None:
        """Starts what could start by then; whoever waits came before that."""
        while self._waiting:
            oldest_s, model = min((came[0], m) for m, came in self._waiting.items())
            start_s = max(self._free_s[0], oldest_s)
            if start_s > now_s:
                return
            self._start(model, start_s)

    def _start(self, model: int, start_s: float) -> None:
        """Takes as many of the model's requests as end in time together; drops those that would come too late alone."""
        times, came, deadline_s = self.times[model], self._waiting[model], self._deadlines_s[model]

        def is_late(batch: int) -> bool:
            return came[0] < start_s + times.seconds(batch) - deadline_s

        while came and is_late(1):
            came.popleft()
            self._missed[model] += 1
            self._num_waiting -= 1
        batch = min(len(came), times.most_requests)
        while batch > 1 and is_late(batch):
            batch -= 1
        for _ in range(batch):
            came.popleft()
        if not came:
            del self._waiting[model]
        self._num_waiting -= batch
        self._in_time[model] += batch
        if batch:
            heapq.heapreplace(self._free_s, start_s + times.seconds(batch))
            self.busy_s += times.seconds(batch)
