"""Service that flows have received, in virtual tokens: VTC (Sheng et al., OSDI 2024, Algorithm 1) with bounded credit.

Each flow has a counter of the service it has received, in weighted tokens; the flow with the least is served next. The
predicted output is charged at admission, settled at the end (their §4.4).

A flow that comes back is lifted to the least counter among those that wait, less a credit. Without credit (VTC) a burst
of a flow that takes less than its share takes turns with a flow that waits all the time, and its first tokens are late
though its share is not used up. The credit bounds the burst. It is earned only while others wait: what nobody else
wanted is held against nobody.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from router.admission.flow import Flow, Standing, Waiting
from router.admission.learned_estimates import LATE_SHARE, QueueForecast
from router.request_terms import Priority

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""A generated token costs more than a prompt token: w_p and w_q of the paper."""


_MOST_IDLE = 4096
"""Keys that do not wait and are remembered: clients may call themselves otherwise with each request."""


def virtual_tokens(*, prompt_tokens: int = 0, output_tokens: int = 0) -> float:
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


class ServiceCounters:
    """Virtual tokens per key."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._active: set[str] = set()
        self._level = 0.0  # never falls: flows that come one after the other do not get ever lower counters by credit
        self._level_before = 0.0  # when somebody last began to wait after nobody did
        self._credit = 0.0

    def activate(self, key: str, *, credit: float = 0.0) -> None:
        """`credit`, in virtual tokens, is how far behind the others a flow's counter may be after idling."""
        if key in self._active:
            return
        if self._active:
            self._level = self._least()
        else:
            self._level_before = self._level
        self._credit = credit
        self._counters[key] = max(self._counters.get(key, 0.0), self._floor)
        self._active.add(key)

    def deactivate(self, key: str) -> None:
        if key in self._active:
            self._active.discard(key)
            if not self._active:
                self._level = max(self._level, self._counters[key])

    def charge(self, key: str, virtual_tokens: float) -> None:
        self._counters[key] = self._counters.get(key, 0.0) + virtual_tokens

    def of(self, key: str) -> float:
        return self._counters.get(key, 0.0)

    def take_over(self, key: str, other: "ServiceCounters") -> None:
        """Goes on with a flow that was counted elsewhere, with its lead over the others there."""
        self._counters[key] = self._level + max(0.0, other.of(key) - other._least())
        if key in other._active:
            self._active.add(key)

    def forget_idle(self) -> None:
        """Bounds memory where keys come and go. An idle key would be lifted to the floor anyway when it comes back,
        unless it is ahead of it: it has used some of its credit. Of those the ones that are furthest ahead are kept.
        """
        kept = {k: c for k, c in self._counters.items() if k in self._active or c > self._floor}
        if len(kept) - len(self._active) > _MOST_IDLE:
            idle = (k for k in kept if k not in self._active)
            ahead = {*heapq.nlargest(_MOST_IDLE, idle, key=kept.__getitem__)}
            kept = {k: c for k, c in kept.items() if k in self._active or k in ahead}
        self._counters = kept

    def _least(self) -> float:
        return max(self._level, min((self._counters[k] for k in self._active), default=0.0))

    @property
    def _floor(self) -> float:
        return max(self._level - self._credit, self._level_before)


_ARRANGE_EVERY_S = 0.02  # in between, newcomers take their places by due time


class Turn(NamedTuple):
    """`rank`: how the ask stands beside other models'; a late one that has its share stands as if it were in time."""

    rank: Standing
    standing: Standing
    waiting: Waiting


@dataclass(slots=True, eq=False)
class FlowQueue:
    """Strict priority first, then what can be in time, then the flow with the least service."""

    counters: ServiceCounters = field(default_factory=ServiceCounters)
    flows: dict[Priority, dict[str, Flow]] = field(default_factory=dict)
    per_tenant: dict[str, int] = field(default_factory=dict)
    size: int = 0
    _arranged_s: float = -math.inf
    _late_mark: float = 0.0  # what had been served in all when a late ask last had its turn

    def push(self, waiting: Waiting) -> None:
        request = waiting.request
        flows = self.flows.setdefault(request.priority, {})
        flow = flows.get(request.tenant)
        if flow is None:
            flow = flows[request.tenant] = Flow()
        flow.push(waiting)
        self.per_tenant[request.tenant] = self.per_tenant.get(request.tenant, 0) + 1
        self.size += 1

    def remove(self, waiting: Waiting) -> None:
        request = waiting.request
        flows = self.flows[request.priority]
        flow = flows[request.tenant]
        flow.remove(waiting)
        if not flow.size:
            del flows[request.tenant]
            if not flows:
                del self.flows[request.priority]
        self.size -= 1
        self.per_tenant[request.tenant] -= 1
        if not self.per_tenant[request.tenant]:
            del self.per_tenant[request.tenant]
            self.counters.deactivate(request.tenant)

    def turns(
        self, now_s: float, pace: QueueForecast, *, served: float, but: Set[Standing] = frozenset()
    ) -> Iterator[Turn]:
        """Yields the next ask of a queue with any; then, where that one cannot go, what it need not hold up.

        That is, of one in time, the doubtful of its own flow, which may be due before it. `but`: none of these
        standings. `served`: in all, of all models that compete.
        """
        if now_s - self._arranged_s >= _ARRANGE_EVERY_S:
            self._arrange(now_s, pace)
        flows = self.flows[max(self.flows)]
        late = self._least_served((t, flow.next_late()) for t, flow in flows.items())
        if late is None:
            self._late_mark = served
        elif (served - self._late_mark) * LATE_SHARE >= late.work and Standing.LATE not in but:
            yield Turn(Standing.IN_TIME, Standing.LATE, late)
        in_time = self._next_in_time(flows, now_s, pace)
        if in_time is not None:
            yield Turn(Standing.IN_TIME, Standing.IN_TIME, in_time)
            flows = {in_time.request.tenant: flows[in_time.request.tenant]}
        if Standing.DOUBTFUL not in but:
            doubtful = self._least_served((t, flow.next_doubtful(now_s, pace)) for t, flow in flows.items())
            if doubtful is not None:
                yield Turn(Standing.DOUBTFUL, Standing.DOUBTFUL, doubtful)
                return
        if in_time is None and Standing.LATE not in but:
            late = self._least_served((t, flow.next_late()) for t, flow in flows.items())  # more may be late by now
            if late is not None:
                yield Turn(Standing.LATE, Standing.LATE, late)

    def _next_in_time(self, flows: Mapping[str, Flow], now_s: float, pace: QueueForecast) -> Waiting | None:
        in_time = self._least_served((t, flow.next_in_time(now_s, pace)) for t, flow in flows.items())
        if in_time is None and self._arranged_s < now_s:
            self._arrange(now_s, pace)  # what was put back can be in time now
            in_time = self._least_served((t, flow.next_in_time(now_s, pace)) for t, flow in flows.items())
        return in_time

    def late_is_served(self, served: float) -> None:
        self._late_mark = served

    def count_served_from(self, offset: float) -> None:
        """Moves the mark of late asks: `served` is counted from elsewhere from now on, and so much greater."""
        self._late_mark += offset

    def work_before(self, priority: Priority, tenant: str) -> float:
        """Returns what the queue passes before a newcomer of that flow has its turn, if all that is open is served."""
        works = self._open_works(priority)
        own = works.get(tenant, 0.0)
        ahead = sum(flow.open_work for p, flows in self.flows.items() if p > priority for flow in flows.values())
        return ahead + sum(min(work, own) for work in works.values())

    def hopeless(self, now_s: float, pace: QueueForecast) -> list[Waiting]:
        """Late asks whose turn is not expected before their deadline, the newest of a flow first."""
        found: list[Waiting] = []
        open_work = sum(flow.open_work for flows in self.flows.values() for flow in flows.values())
        ahead = 0.0
        for priority in sorted(self.flows, reverse=True):
            flows = self.flows[priority]
            works = {tenant: flow.late_work for tenant, flow in flows.items() if flow.late_work}
            for tenant in works:
                for waiting in flows[tenant].newest_late():
                    passed = ahead + sum(min(work, works[tenant]) for work in works.values())
                    if now_s + pace.late_wait_s(open_work, passed) <= waiting.request.deadline_s:
                        break
                    found.append(waiting)
                    works[tenant] -= waiting.work
            ahead += sum(works.values())
        return found

    def last_of_greediest(self) -> Waiting | None:
        """Returns the request that makes room in a full queue: of the lowest class, the last of the tenant that waits
        with most.
        """
        if not self.size:
            return None
        flows = self.flows[min(self.flows)]
        return flows[max(flows, key=lambda t: (flows[t].size, t))].last()

    def _open_works(self, priority: Priority) -> Mapping[str, float]:
        return {tenant: flow.open_work for tenant, flow in self.flows.get(priority, {}).items()}

    def _arrange(self, now_s: float, pace: QueueForecast) -> None:
        self._arranged_s = now_s
        for priority, flows in self.flows.items():
            passed = turn_works(self._open_works(priority))
            for tenant, flow in flows.items():
                share = flow.open_work / passed[tenant] if passed[tenant] > 0 else 1.0
                flow.arrange(now_s, pace, tenant=tenant, share=share)

    def _least_served(self, heads: Iterable[tuple[str, Waiting | None]]) -> Waiting | None:
        of_tenant = {tenant: waiting for tenant, waiting in heads if waiting is not None}
        if len(of_tenant) < 2:
            return next(iter(of_tenant.values()), None)
        return of_tenant[min(of_tenant, key=lambda t: (self.counters.of(t), t))]


def turn_works(works: Mapping[str, float]) -> dict[str, float]:
    """Returns what the queue passes until the work of each flow is done, when flows with any get equal shares.

    >>> turn_works({"flood": 10.0, "small": 1.0})
    {'small': 2.0, 'flood': 11.0}
    """
    passed: dict[str, float] = {}
    done, left = 0.0, len(works)
    for tenant in sorted(works, key=lambda t: works[t]):
        passed[tenant] = done + works[tenant] * left
        done += works[tenant]
        left -= 1
    return passed
