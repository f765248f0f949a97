"""Gives turns by fair queueing among models and, within a model, among API keys; and tells what is worth a try.

Fairness decides which flow's turn it is (ServiceCounters), servability which ask of the flow has it (Flow).
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Set
from types import MappingProxyType

from router.admission.flow import Standing, Waiting
from router.admission.flow_queue import FlowQueue, Turn
from router.admission.learned_estimates import QueueForecast
from router.admission.service_counters import ServiceCounters, virtual_tokens
from router.request_terms import AdmissionRequest, Priority

PaceOf = Callable[[str, float], QueueForecast]  # of a model, now

_UNKNOWN = QueueForecast()
_NONE: Set[Standing] = frozenset()
_ALL = frozenset(Standing)


class FairQueue:
    """Strict priority first; then what can be in time before what cannot; of those the least served model, and its
    least served tenant.
    """

    def __init__(self) -> None:
        self._queues: dict[str, FlowQueue] = {}
        self._models = ServiceCounters()
        self._waiting: dict[str, Waiting] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._arrivals = 0
        self._served = 0.0  # virtual tokens of all models

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

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

    def push(
        self,
        request: AdmissionRequest,
        now_s: float,
        *,
        work: float | None = None,
        prefill_s: float = 0.0,
        credit: float = 0.0,
    ) -> None:
        """`work` and `credit`, its tenant's, in virtual tokens; `prefill_s` as routing predicts it."""
        assert request.request_id not in self._waiting, f"{request.request_id} waits already"
        queue = self._queue(request.model)
        self._models.activate(request.model)
        queue.counters.activate(request.tenant, credit=credit)
        self._arrivals += 1
        waiting = self._waiting[request.request_id] = Waiting(
            request=request,
            number=self._arrivals,
            due_s=min(now_s + request.slo.ttft_s, request.deadline_s),
            work=virtual_tokens(prompt_tokens=request.prompt_tokens) if work is None else work,
            prefill_s=prefill_s,
        )
        queue.push(waiting)
        heapq.heappush(self._deadlines, (request.deadline_s, request.request_id))

    def remove(self, request_id: str) -> AdmissionRequest | None:
        """None if it does not wait (any more)."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        queue = self._queues[waiting.request.model]
        queue.remove(waiting)
        if not queue.size:
            self._models.deactivate(waiting.request.model)
        return waiting.request

    def serve(self, request_id: str) -> Waiting:
        """It has its turn."""
        waiting = self._waiting[request_id]
        if waiting.is_late:
            self._queues[waiting.request.model].late_is_served(self._served)
        self.remove(request_id)
        return waiting

    def turns(
        self, now_s: float, pace_of: PaceOf, *, but: Mapping[str, Set[Standing]] = MappingProxyType({})
    ) -> Iterator[Turn]:
        """Asks in the order in which they may go: the next of every model in the order in which models are due, and
        where it is passed over, the model's next of a lower standing. `but`: none of these standings. Valid until the
        queue changes.
        """
        order: list[tuple[int, Standing, float, str, Turn, Iterator[Turn]]] = []

        def add_next(model: str, turns: Iterator[Turn]) -> None:
            if (turn := next(turns, None)) is not None:
                key = (-turn.waiting.request.priority, turn.rank, self._models.of(model), model)
                heapq.heappush(order, (*key, turn, turns))

        for model, queue in self._queues.items():
            skipped = but.get(model, _NONE)
            if queue.size and len(skipped) < len(Standing):
                add_next(model, queue.turns(now_s, pace_of(model, now_s), served=self._served, but=skipped))
        while order:
            *_, model, turn, turns = heapq.heappop(order)
            yield turn
            add_next(model, turns)

    def head(self, model: str, now_s: float, pace: QueueForecast = _UNKNOWN) -> AdmissionRequest | None:
        queue = self._queues.get(model)
        if queue is None or not queue.size:
            return None
        return next(queue.turns(now_s, pace, served=self._served)).waiting.request

    def hopeless(self, now_s: float, pace_of: PaceOf) -> list[AdmissionRequest]:
        """Removes and returns late asks whose turn is not expected within their patience."""
        found = [
            waiting.request
            for model, queue in self._queues.items()
            if queue.size
            for waiting in queue.hopeless(now_s, pace_of(model, now_s))
        ]
        for request in found:
            self.remove(request.request_id)
        return found

    def work_before(self, request: AdmissionRequest) -> float:
        """Virtual tokens that have their turn before a newcomer."""
        queue = self._queues.get(request.model)
        return 0.0 if queue is None else queue.work_before(request.priority, request.tenant)

    def last_of_greediest(self, model: str) -> Waiting | None:
        """Returns the request that makes room in a full queue: of the lowest class, the last of the tenant that waits
        with most.
        """
        queue = self._queues.get(model)
        return None if queue is None else queue.last_of_greediest()

    def charge(self, model: str, tenant: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Service given, or, negative, service that was charged too much."""
        service = virtual_tokens(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self._models.charge(model, service)
        self._queue(model).counters.charge(tenant, service)
        self._served += max(0.0, service)

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

    def expired(self, now_s: float) -> list[AdmissionRequest]:
        """Removes and returns what waited until its deadline."""
        late = []
        while (deadline_s := self.next_deadline_s()) is not None and deadline_s <= now_s:
            request = self.remove(self._deadlines[0][1])
            assert request is not None, "the first deadline is that of a waiting ask"
            late.append(request)
        return late

    def next_deadline_s(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def models(self) -> Iterator[str]:
        """Returns the models with anything waiting."""
        return (model for model, queue in self._queues.items() if queue.size)

    def waiting(self) -> Iterator[AdmissionRequest]:
        return (waiting.request for waiting in self._waiting.values())

    def keep_models(self, models: frozenset[str]) -> None:
        """Forgets what models left the fleet, once nothing of them waits, and tenants without a claim."""
        for model in [m for m, q in self._queues.items() if m not in models and not q.size]:
            del self._queues[model]
        for queue in self._queues.values():
            queue.counters.forget_idle()

    def _queue(self, model: str) -> FlowQueue:
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = FlowQueue()
        return queue


class BlockedTurns:
    """Remembers which asks were tried in vain, and when another try makes sense.

    An ask that a unit has no room for blocks its model until something changes: smaller ones would take the room for
    ever. One that would wait behind too much on the unit blocks what has no better standing; of what is in time it
    blocks itself only, since a newcomer may be due before it.
    """

    def __init__(self) -> None:
        self._until_s: dict[str, dict[Standing, float]] = {}  # by model
        self._in_time: dict[str, str] = {}  # by model, the request that is in time and blocked
        self._class: dict[str, Priority] = {}  # by model, of what was blocked last

    def block(self, request: AdmissionRequest, standing: Standing, until_s: float) -> None:
        """`until_s`: infinite where time alone changes nothing."""
        model = request.model
        self._class[model] = request.priority
        if until_s == math.inf:
            self._until_s[model] = dict.fromkeys(Standing, math.inf)
            self._in_time.pop(model, None)
            return
        self._until_s.setdefault(model, {})[standing] = until_s
        if standing is Standing.IN_TIME:
            self._in_time[model] = request.request_id

    def newcomer(self, request: AdmissionRequest) -> None:
        """One of a higher class is the next, and may find room where the others did not."""
        if request.priority > self._class.get(request.model, Priority.HIGH):
            self.something_has_changed(request.model)

    def standings(self, now_s: float) -> Mapping[str, Set[Standing]]:
        """Returns what need not be looked at, by model, and forgets what may be tried again by now."""
        for model, of_model in list(self._until_s.items()):
            if min(of_model.values(), default=math.inf) <= now_s:
                self._until_s[model] = {standing: s for standing, s in of_model.items() if s > now_s}
        return {model: self._blocked(of_model) for model, of_model in self._until_s.items()}

    def is_blocked(self, request: AdmissionRequest, now_s: float) -> bool:
        """Returns whether this ask, in time, was tried a moment ago."""
        until_s = self._until_s.get(request.model, {}).get(Standing.IN_TIME, -math.inf)
        return until_s > now_s and self._in_time.get(request.model) == request.request_id

    def next_try_s(self, model: str) -> float:
        """Returns when time alone may change something for a model whose every standing has been tried."""
        return min(self._until_s.get(model, {}).values(), default=-math.inf)

    def something_has_changed(self, model: str | None = None) -> None:
        """Everybody of the model, or of all, may be tried again."""
        if model is None:
            self._until_s.clear()
            self._in_time.clear()
            self._class.clear()
        else:
            self._until_s.pop(model, None)
            self._in_time.pop(model, None)
            self._class.pop(model, None)

    def unit_is_free_sooner(self) -> None:
        """Lets those that waited behind others be tried again, and not those without room."""
        self._until_s = {m: of for m, of in self._until_s.items() if math.inf in of.values()}
        self._in_time.clear()

    def _blocked(self, of_model: Mapping[Standing, float]) -> Set[Standing]:
        if of_model.get(Standing.IN_TIME) == math.inf:
            return _ALL
        return frozenset(standing for standing in of_model if standing is not Standing.IN_TIME)
