"""Defines what waits of one API key for one model: what can be in time first, what cannot any more behind it."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from pdmux_actor.scheduling.serving_order import Candidate, serving_order
from router.admission.learned_estimates import QueueForecast
from router.request_terms import AdmissionRequest


@dataclass(slots=True, eq=False)
class Waiting:
    """`due_s`: the first token is in time until then. `work` is what its turn takes of the model's queue, in virtual
    tokens without those that are cached, `prefill_s` what the unit needs for it, as routing predicted when it came.
    """

    request: AdmissionRequest
    number: int  # in the order of arrival
    due_s: float
    work: float
    prefill_s: float
    is_late: bool = False
    is_gone: bool = False

    def latest_start_s(self, pace: QueueForecast) -> float:
        """Returns when its turn must have come."""
        return self.due_s - self.prefill_s - pace.lag_s(self.prefill_s)


def _by_due(waiting: Waiting) -> tuple[float, int]:
    return (waiting.due_s - waiting.prefill_s, waiting.number)


def _by_patience(waiting: Waiting) -> tuple[float, int]:
    return (waiting.request.deadline_s, waiting.number)


class Standing(IntEnum):
    """Ranks flows in the order of service."""

    IN_TIME = 0
    DOUBTFUL = 1
    LATE = 2


class Flow:
    """Three kinds of asks, served in this order:

    *in time*: Moore-Hodgson's rule says that they can all be, one after the other; by due time. *doubtful*: the rule
    puts them back, or the lag of the last requests is too long for them; first who has the best chance for its work.
    *late*: not even an idle unit could be in time; by deadline. The rule is asked again when the queue has moved.
    """

    def __init__(self) -> None:
        self._open: list[Waiting] = []  # not late; may hold what is gone
        self._in_time: list[Waiting] = []  # of `_open`, in the order of service
        self._late: list[Waiting] = []  # in the order of service; may hold what is gone
        self._late_gone = 0
        self.open_work = 0.0
        self.late_work = 0.0
        self.size = 0

    def push(self, waiting: Waiting) -> None:
        """It counts as in time until `arrange` has looked."""
        self._open.append(waiting)
        insort(self._in_time, waiting, key=_by_due)
        self.open_work += waiting.work
        self.size += 1

    def remove(self, waiting: Waiting) -> None:
        waiting.is_gone = True
        self.size -= 1
        if waiting.is_late:
            self.late_work -= waiting.work
            self._late_gone += 1
            if self._late_gone > len(self._late) // 2:
                self._late = [w for w in self._late if not w.is_gone]
                self._late_gone = 0
        else:
            self.open_work -= waiting.work

    def arrange(self, now_s: float, pace: QueueForecast, *, tenant: str, share: float) -> None:
        """`share` is the flow's of what the model's queue passes."""
        self._open = [waiting for waiting in self._open if not self._is_closed(waiting, now_s)]
        ranked = sorted((w for w in self._open if now_s <= w.latest_start_s(pace)), key=_by_due)
        works_s = pace.works_s(tenant, [waiting.work for waiting in ranked], share)
        if works_s is None:
            self._in_time = ranked
            return
        candidates = [
            Candidate(due_s=waiting.latest_start_s(pace) + work_s, work_s=work_s)
            for waiting, work_s in zip(ranked, works_s, strict=True)
        ]
        self._in_time = [ranked[index] for index in serving_order(candidates, free_s=now_s).in_time]

    def next_in_time(self, now_s: float, pace: QueueForecast) -> Waiting | None:
        order = self._in_time
        while order and (self._is_closed(order[0], now_s) or now_s > order[0].latest_start_s(pace)):
            del order[0]
        return order[0] if order else None

    def next_doubtful(self, now_s: float, pace: QueueForecast) -> Waiting | None:
        """Returns the next request where nothing is in time: the one with the best chance for its work."""

        def chance_per_work(waiting: Waiting) -> float:
            slack_s = waiting.due_s - waiting.prefill_s - now_s
            lag_s = pace.lag_s(waiting.prefill_s)
            return min(1.0, slack_s / lag_s if lag_s > 0 else 1.0) / max(1.0, waiting.work)

        return max((w for w in self._open if not self._is_closed(w, now_s)), key=chance_per_work, default=None)

    def next_late(self) -> Waiting | None:
        return next((waiting for waiting in self._late if not waiting.is_gone), None)

    def newest_late(self) -> Iterator[Waiting]:
        """The one that is served after all others first."""
        return (waiting for waiting in reversed(self._late) if not waiting.is_gone)

    def last(self) -> Waiting | None:
        """The one that is served after all others."""
        late = next(self.newest_late(), None)
        return late or max((w for w in self._open if not w.is_gone and not w.is_late), key=_by_due, default=None)

    def _is_closed(self, waiting: Waiting, now_s: float) -> bool:
        """Gone, or late: then it is put with the late ones."""
        if waiting.is_gone or waiting.is_late:
            return True
        if now_s <= waiting.due_s - waiting.prefill_s:
            return False
        waiting.is_late = True
        insort(self._late, waiting, key=_by_patience)
        self.open_work -= waiting.work
        self.late_work += waiting.work
        return True
