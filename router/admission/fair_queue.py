"""Gives turns by fair queueing among models that compete and, within a model, among API keys.

Fairness decides which flow's turn it is (ServiceCounters), servability which ask of the flow has it (Flow).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Set

from router.admission.flow import Standing, Waiting
from router.admission.learned_estimates import QueueForecast
from router.admission.service_counters import FlowQueue, ServiceCounters, Turn, virtual_tokens
from router.request_terms import AdmissionRequest

PaceOf = Callable[[str, float], QueueForecast]  # of a model, now
SkippedOf = Callable[[str, float], Set[Standing]]

_UNKNOWN = QueueForecast()


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
        self._served = 0.0  # virtual tokens of all its models

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
        came_s: float,
        *,
        work: float | None = None,
        prefill_s: float = 0.0,
        credit: float = 0.0,
    ) -> None:
        """`work` and `credit`, its tenant's, in virtual tokens; `prefill_s` as routing predicts it. The first token
        is due one target after `came_s`.
        """
        assert request.request_id not in self._waiting, f"{request.request_id} waits already"
        queue = self._queue(request.model)
        self._models.activate(request.model)
        queue.counters.activate(request.tenant, credit=credit)
        self._arrivals += 1
        waiting = self._waiting[request.request_id] = Waiting(
            request=request,
            number=self._arrivals,
            due_s=min(came_s + request.slo.ttft_s, request.deadline_s),
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

    def turns(self, models: Iterable[str], now_s: float, pace_of: PaceOf, *, but: SkippedOf) -> Iterator[Turn]:
        """Asks of these models in the order in which they may go: the next of every model in the order in which models
        are due, and where it is passed over, the model's next of a lower standing. `but`: none of these standings. What
        was told last may be served; nothing else may change meanwhile.
        """
        order: list[tuple[int, Standing, float, str, Turn, Iterator[Turn]]] = []

        def add_next(model: str, turns: Iterator[Turn]) -> None:
            if (turn := next(turns, None)) is not None:
                key = (-turn.waiting.request.priority, turn.rank, self._models.of(model), model)
                heapq.heappush(order, (*key, turn, turns))

        def add(model: str) -> None:
            queue, skipped = self._queues[model], but(model, now_s)
            if queue.size and len(skipped) < len(Standing):
                add_next(model, queue.turns(now_s, pace_of(model, now_s), served=self._served, but=skipped))

        for model in models:
            add(model)
        while order:
            *_, model, turn, turns = heapq.heappop(order)
            yield turn
            if turn.waiting.is_gone:
                add(model)
            else:
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

    def take_over(self, model: str, other: "FairQueue") -> None:
        """Goes on with what waits of a model in a queue that is not used any more. It keeps its lead over those that
        it competed with there.
        """
        queue = other._queues.get(model)
        if queue is None:
            return
        self._queues[model] = queue
        queue.count_served_from(self._served - other._served)
        self._models.take_over(model, other._models)
        self._arrivals = max(self._arrivals, other._arrivals)
        for request_id, waiting in other._waiting.items():
            if waiting.request.model == model:
                self._waiting[request_id] = waiting
                heapq.heappush(self._deadlines, (waiting.request.deadline_s, request_id))

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
