"""Whose turn it is: fair queueing by virtual tokens, among models and, within a model, among API keys.

VTC (Sheng et al., OSDI 2024, Algorithm 1): each flow has a counter of the service it has received, in weighted tokens;
the flow with the least is served next. The predicted output is charged at admission, settled at the end (their §4.4).

A flow that comes back is lifted to the least counter among those that wait, less a credit. Without credit (VTC) a burst
of a flow that takes less than its share takes turns with a flow that waits all the time, and its first tokens are late
though its share is not used up. The credit bounds the burst. It is earned only while others wait: what nobody else
wanted is held against nobody.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from router.ask import Ask, Priority

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""A generated token costs more than a prompt token: w_p and w_q of the paper."""


def virtual_tokens(*, prompt_tokens: int = 0, output_tokens: int = 0) -> float:
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


Flow = tuple[str, str]
"""Model and tenant."""


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
            self._level = max(self._level, min(self._counters[k] for k in self._active))
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

    def forget_idle(self) -> None:
        """Bounds memory where keys come and go. An idle key would be lifted to the floor anyway when it comes back,
        unless it is ahead of it: it has used some of its credit.
        """
        self._counters = {k: c for k, c in self._counters.items() if k in self._active or c > self._floor}

    @property
    def _floor(self) -> float:
        return max(self._level - self._credit, self._level_before)


@dataclass(slots=True, eq=False)
class _ModelQueue:
    """Waiting asks by priority and tenant; within a tenant the earliest deadline is first."""

    counters: ServiceCounters = field(default_factory=ServiceCounters)
    waiting: dict[Priority, dict[str, list[tuple[float, int, Ask]]]] = field(default_factory=dict)
    per_tenant: dict[str, int] = field(default_factory=dict)
    size: int = 0


class FairQueue:
    """Strict priority first, then the least served model, then its least served tenant, then the earliest deadline."""

    def __init__(self) -> None:
        self._queues: dict[str, _ModelQueue] = {}
        self._models = ServiceCounters()
        self._asks: dict[str, Ask] = {}  # what waits; heaps may still hold what was removed
        self._deadlines: list[tuple[float, str]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._asks)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._asks

    def size(self, model: str) -> int:
        queue = self._queues.get(model)
        return 0 if queue is None else queue.size

    def tenant_size(self, model: str, tenant: str) -> int:
        queue = self._queues.get(model)
        return 0 if queue is None else queue.per_tenant.get(tenant, 0)

    def num_tenants(self, model: str) -> int:
        """Tenants that wait."""
        queue = self._queues.get(model)
        return 0 if queue is None else len(queue.per_tenant)

    def push(self, ask: Ask, *, credit: float = 0.0) -> None:
        """`credit`: of its tenant, in virtual tokens."""
        assert ask.request_id not in self._asks, f"{ask.request_id} waits already"
        queue = self._queue(ask.model)
        self._models.activate(ask.model)
        queue.counters.activate(ask.tenant, credit=credit)
        self._arrivals += 1
        heap = queue.waiting.setdefault(ask.priority, {}).setdefault(ask.tenant, [])
        heapq.heappush(heap, (ask.deadline_s, self._arrivals, ask))
        heapq.heappush(self._deadlines, (ask.deadline_s, ask.request_id))
        queue.per_tenant[ask.tenant] = queue.per_tenant.get(ask.tenant, 0) + 1
        queue.size += 1
        self._asks[ask.request_id] = ask

    def remove(self, request_id: str) -> Ask | None:
        """None if it does not wait (any more)."""
        ask = self._asks.pop(request_id, None)
        if ask is None:
            return None
        queue = self._queues[ask.model]
        queue.size -= 1
        queue.per_tenant[ask.tenant] -= 1
        if not queue.per_tenant[ask.tenant]:
            del queue.per_tenant[ask.tenant]
            queue.counters.deactivate(ask.tenant)
            for of_priority in queue.waiting.values():
                of_priority.pop(ask.tenant, None)
        if not queue.size:
            queue.waiting.clear()
            self._models.deactivate(ask.model)
        return ask

    def heads(self) -> Iterator[Ask]:
        """The next ask of every model with any, in the order in which models are due. Valid until the queue changes."""
        heads = [ask for model, queue in self._queues.items() if queue.size and (ask := self.head(model)) is not None]
        yield from sorted(heads, key=lambda ask: (-ask.priority, self._models.of(ask.model), ask.model))

    def head(self, model: str) -> Ask | None:
        queue = self._queues.get(model)
        if queue is None or not queue.size:
            return None
        for priority in sorted(queue.waiting, reverse=True):
            tenants = queue.waiting[priority]
            for tenant in [t for t in tenants if self._first(tenants[t]) is None]:
                del tenants[tenant]
            if tenants:
                return self._first(tenants[min(tenants, key=lambda t: (queue.counters.of(t), t))])
        raise AssertionError("a queue with asks has a head")

    def newest_of_greediest(self, model: str) -> Ask | None:
        """Who makes room in a full queue: of the lowest class, the tenant that waits with most, its last one."""
        queue = self._queues.get(model)
        if queue is None or not queue.size:
            return None
        for priority in sorted(queue.waiting):
            sizes = {
                tenant: waiting
                for tenant, heap in queue.waiting[priority].items()
                if (waiting := [entry for entry in heap if entry[2].request_id in self._asks])
            }
            if sizes:
                greediest = max(sizes, key=lambda t: (len(sizes[t]), t))
                return max(sizes[greediest], key=lambda entry: entry[:2])[2]
        raise AssertionError("a queue with asks has a newest one")

    def charge(self, model: str, tenant: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Service given, or, negative, service that was charged too much."""
        service = virtual_tokens(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self._models.charge(model, service)
        self._queue(model).counters.charge(tenant, service)

    def enter(self, model: str, tenant: str, *, credit: float = 0.0) -> None:
        """A request that is served without waiting passes the queue too: its flow is lifted like any other's."""
        queue = self._queue(model)
        self._models.activate(model)
        queue.counters.activate(tenant, credit=credit)
        if not queue.per_tenant.get(tenant):
            queue.counters.deactivate(tenant)
        if not queue.size:
            self._models.deactivate(model)

    def served(self, model: str, tenant: str) -> float:
        """Virtual tokens of service on the flow's counter."""
        queue = self._queues.get(model)
        return 0.0 if queue is None else queue.counters.of(tenant)

    def expired(self, now_s: float) -> list[Ask]:
        """Removes and returns what waited until its deadline."""
        late = []
        while (deadline_s := self.next_deadline_s()) is not None and deadline_s <= now_s:
            ask = self.remove(self._deadlines[0][1])
            assert ask is not None, "the first deadline is that of a waiting ask"
            late.append(ask)
        return late

    def next_deadline_s(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self._asks:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def models(self) -> Iterator[str]:
        """Those with anything waiting."""
        return (model for model, queue in self._queues.items() if queue.size)

    def waiting(self) -> Iterator[Ask]:
        yield from self._asks.values()

    def keep_models(self, models: frozenset[str]) -> None:
        """Forgets what models left the fleet, once nothing of them waits, and tenants without a claim."""
        for model in [m for m, q in self._queues.items() if m not in models and not q.size]:
            del self._queues[model]
        for queue in self._queues.values():
            queue.counters.forget_idle()

    def _queue(self, model: str) -> _ModelQueue:
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = _ModelQueue()
        return queue

    def _first(self, heap: list[tuple[float, int, Ask]]) -> Ask | None:
        while heap and heap[0][2].request_id not in self._asks:
            heapq.heappop(heap)
        return heap[0][2] if heap else None
