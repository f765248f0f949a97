"""Decides whether a request may enter, must wait for its turn, or is turned away. Sans-I/O: callers tell the time."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from router.admission.block_ledger import QuotaLedger
from router.admission.flow import Waiting
from router.admission.learned_estimates import OutputLengths, QueueForecast, QueueForecaster, WakeTimes
from router.admission.rival_queues import RivalQueue, RivalQueues, rival_models
from router.admission.service_counters import virtual_tokens
from router.request_terms import AdmissionRequest
from router.routing.routing import UnitChoice, UnitRouter

MAX_RETRY_AFTER_S = 120
"""The OpenAI SDKs give up above."""

_LEAST_PAUSE_S = 0.002  # between two tries
_ROUNDING_S = 1e-6  # what floats may be off by
_LATELY_S = 10.0
# A request is handed to a unit when the prefills before it there take no more than this share of its TTFT target, or
# its model's if that is less; the others wait here, where turns are fair. A larger one while one tenant alone asks,
# since between its own requests the unit decides as well, and batches what it sees.
_AHEAD_SHARE, _AHEAD_SHARE_ALONE = 0.05, 0.25
_LEAST_AHEAD_S = 0.01  # may always be ahead, so that the unit does not idle while it is asked
_NO_PACE = QueueForecast()
_BLIND_RETRY_AFTER_S = 5  # while nothing is known of how fast the queue moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Blocks are reserved, and the request counts as sent to `choice`. `came_s`: since when it waits."""

    choice: UnitChoice
    came_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The request waits for its turn, or for a unit that has its model. `choice` is where it would have gone."""

    choice: UnitChoice | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """Overload (429): the model is served, but not this request, not now."""

    retry_after_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCapacity:
    """No unit has the model (503)."""

    retry_after_s: int


Outcome = Admit | Shed | NoCapacity
Decision = Outcome | Queue


@dataclass(slots=True, eq=False)
class _Admitted:
    """`output_tokens` it was charged for. `prefill_s` was predicted; None when the first token tells nothing of it."""

    request: AdmissionRequest
    output_tokens: int
    admitted_s: float
    prefill_s: float | None


class Admission:
    """Every ask that is offered gets exactly one Outcome: from `offer`, or later from `pump`; or it is withdrawn."""

    def __init__(self, router: UnitRouter, ledger: QuotaLedger, *, max_waiting: int) -> None:
        """`max_waiting` counts a model's requests before their first token, here and on units."""
        self.queues = RivalQueues()
        self.lengths = OutputLengths()
        self.wakes = WakeTimes()
        self._router = router
        self._ledger = ledger
        self._max_waiting = max_waiting
        self._learners: dict[str, QueueForecaster] = {}
        self._ttft_targets_s: Mapping[str, float] = {}
        self._before_first: dict[str, int] = {}  # admitted, no token yet
        self._running: dict[str, _Admitted] = {}
        self._waiting: dict[str, AdmissionRequest] = {}
        self._offered_s: dict[str, float] = {}  # of what waits

    # ---- the door ----

    def offer(self, request: AdmissionRequest, now_s: float) -> Decision:
        """Admits, queues or refuses a request. After a Queue call `pump`: turns may have changed."""
        rivals = self._rivals(request.model)
        loser: AdmissionRequest | None = None
        if self._is_full(request.model) and (loser := self._who_makes_room(request, rivals)) is None:
            return self._shed(request.model)
        output_tokens = self._output_tokens(request)
        work = virtual_tokens(prompt_tokens=request.prompt_tokens, output_tokens=output_tokens)
        learner = self._observe(request.model, now_s)
        learner.asked(request.tenant, work, now_s)
        rivals.tenants_s[request.tenant] = now_s
        choice = self._choose(request, now_s)
        if not rivals.turns:
            rivals.turns.enter(request.model, request.tenant, credit=self._credit(request, rivals))
        try_s = math.inf if rivals.turns.size(request.model) else self._next_try_s(request, choice, now_s, rivals)
        if choice is not None and try_s <= now_s and not rivals.turns:
            return self._admit(request, choice, now_s, rivals)
        prefill_s = 0.0 if choice is None else choice.prefill_s
        if choice is None:
            self.wakes.held(request.model, now_s)
        else:
            work -= virtual_tokens(prompt_tokens=choice.prefix_tokens)
            if try_s > now_s and self._comes_too_late(request, work, now_s, rivals):
                return self._shed(request.model)
        if loser is not None:  # not before: who is turned away takes nobody's place
            rivals.evict(loser)
        self._waiting[request.request_id] = request
        self._offered_s[request.request_id] = now_s
        came_s = self._came_s(request, now_s)
        rivals.push(request, came_s, work=work, prefill_s=prefill_s, credit=self._credit(request, rivals))
        return Queue(choice=choice)

    def pump(self, now_s: float, model: str | None = None) -> Sequence[tuple[AdmissionRequest, Outcome]]:
        """Outcomes of asks that waited. Call it when something may have made room, and when `next_pump_s` has come.
        `model`: only of those that compete with it for units.
        """
        outcomes: list[tuple[AdmissionRequest, Outcome]] = []
        for rivals in self._that_wait(model):
            self._pump(rivals, now_s, outcomes)
        for request, _ in outcomes:
            del self._waiting[request.request_id], self._offered_s[request.request_id]
        return outcomes

    def _pump(self, rivals: RivalQueue, now_s: float, outcomes: list[tuple[AdmissionRequest, Outcome]]) -> None:
        outcomes += [(request, self._shed(request.model)) for request in rivals.take_evicted()]
        outcomes += [(request, self._too_late(request, now_s)) for request in rivals.take_expired(now_s)]
        for turn in rivals.worth_a_try(now_s, self._pace):
            request = turn.waiting.request
            choice = self._choose(request, now_s) if self._has_room(request) else None
            # A late one's share is served on the unit, behind what is in time there: it would never be free of that.
            behind_all = turn.rank < turn.standing
            try_s = self._next_try_s(request, choice, now_s, rivals, behind_all=behind_all)
            if choice is None or try_s > now_s:
                rivals.block(turn, try_s)
                continue
            outcomes.append((request, self._admit(request, choice, now_s, rivals)))
            self._has_turn(turn.waiting, now_s)
            rivals.serve(turn.waiting)
        outcomes += [(request, self._shed(request.model)) for request in rivals.take_hopeless(now_s, self._pace)]

    def next_pump_s(self, model: str | None = None) -> float | None:
        """Returns when waiting alone may change something; None while nothing waits. `model`: of its rivals only."""
        found: list[float] = []
        for rivals in self._that_wait(model):
            sheds = any(self._learner(m).drain.work_per_s for m in rivals.turns.models())
            next_s = rivals.next_pump_s(sheds=sheds)
            if next_s is not None:
                found.append(next_s)
        return min(found, default=None)

    def on_view(self, now_s: float) -> None:
        """Units came, went or told their load: everybody may be tried again."""
        self.queues.on_view(rival_models(self._router.models_of_units()), asked_since_s=now_s - _LATELY_S)
        for learner in self._learners.values():
            learner.forget_idle(now_s)
        for model in self.wakes.waiting():
            if self._router.is_ready(model):
                self.wakes.ready(model, now_s)

    def units_are_back(self) -> None:
        """Units that could not be reached can be tried again, and so can everybody."""
        self.queues.units_are_back()

    def withdraw(self, request_id: str) -> bool:
        """The client left; False if the ask does not wait (any more)."""
        request = self._waiting.pop(request_id, None)
        if request is None:
            return False
        del self._offered_s[request_id]
        self._rivals(request.model).remove(request)
        return True

    # ---- what was admitted ----

    def on_first_token(self, request_id: str, now_s: float) -> None:
        admitted = self._running[request_id]
        model = admitted.request.model
        self._before_first[model] -= 1
        if admitted.prefill_s is not None:
            lag_s = now_s - admitted.admitted_s - admitted.prefill_s
            self._learner(model).lags.note(admitted.prefill_s, lag_s)

    def unit_is_free_sooner(self, models: Set[str]) -> None:
        """A unit that has these models is done with a prompt."""
        for model in models:
            if (rivals := self._rivals(model)).turns:
                rivals.unit_is_free_sooner(model)

    def left(self, request_id: str) -> None:
        """Its unit was lost: when its first token comes tells nothing of units."""
        self._running[request_id].prefill_s = None

    def end(self, request_id: str, *, output_tokens: int, had_first_token: bool, finished: bool) -> None:
        """Settles the account of an admitted request, however it ended."""
        admitted = self._running.pop(request_id)
        request = admitted.request
        rivals = self._rivals(request.model)
        rivals.turns.charge(request.model, request.tenant, output_tokens=output_tokens - admitted.output_tokens)
        self._ledger.release(request_id)
        if rivals.turns:
            rivals.has_changed(request.model)
        if not had_first_token:
            self._before_first[request.model] -= 1
        if finished and request.max_tokens > 1:  # one is asked for what is no answer: an embedding, a score
            self.lengths.record(request.model, output_tokens)

    def waiting(self) -> list[tuple[AdmissionRequest, float]]:
        """Returns what waits for its turn, and since when it does."""
        return [(request, self._offered_s[request_id]) for request_id, request in self._waiting.items()]

    def why_waits(self, request: AdmissionRequest, choice: UnitChoice | None) -> str:
        """Says in words what a request waits for that was queued just now."""
        model, ledger = request.model, self._ledger
        before = self._rivals(model).turns.size(model) - 1
        behind = f"behind {before} waiting request{'' if before == 1 else 's'} of {model}; " if before > 0 else ""
        if not self._router.is_ready(model):
            return f"{behind}no unit had {model} ready"
        if not self._has_room(request):
            held, room = ledger.held_blocks(model), ledger.capacity_blocks(model)
            return f"{behind}KV blocks of {model}: {held} of {room} were promised to requests before it"
        if choice is None:
            return f"{behind}no unit could take it"
        return f"{behind}prefills before it on {choice.unit_id}, {choice.before_s:.2f} s of them"

    def rivals_name(self, model: str) -> str:
        return self._rivals(model).name

    def competes(self, model: str) -> bool:
        """Says whether anything waits that wants the units of this model."""
        return bool(self._rivals(model).turns)

    def num_waiting(self, model: str) -> int:
        """Counts a model's requests before their first token, here and on units."""
        return self._rivals(model).turns.size(model) + self._before_first.get(model, 0)

    def keep_models(self, ttft_targets_s: Mapping[str, float]) -> None:
        """The models of the fleet and their TTFT targets."""
        self._ttft_targets_s = ttft_targets_s
        models = frozenset(ttft_targets_s)
        self.queues.keep_models(models)
        self.lengths.keep(models)
        self._learners = {m: of_model for m, of_model in self._learners.items() if m in models}

    # ----

    def _rivals(self, model: str) -> RivalQueue:
        known = self.queues.by_model.get(model)
        return self.queues.of(model) if known is None else known

    def _that_wait(self, model: str | None) -> Sequence[RivalQueue]:
        if model is None:
            return self.queues.in_use()
        rivals = self._rivals(model)
        return (rivals,) if rivals.turns or rivals.evicted else ()

    def _choose(self, request: AdmissionRequest, now_s: float) -> UnitChoice | None:
        return self._router.choose(request, now_s, due_s=self._came_s(request, now_s) + request.slo.ttft_s)

    def _came_s(self, request: AdmissionRequest, now_s: float) -> float:
        """Returns what its target counts from."""
        return self._offered_s.get(request.request_id, now_s) if request.came_s is None else request.came_s

    def _has_room(self, request: AdmissionRequest) -> bool:
        tokens = request.prompt_tokens + self._output_tokens(request)
        return self._ledger.has_room(request.model, tokens, gives_way=request.gives_way)

    def _next_try_s(
        self,
        request: AdmissionRequest,
        choice: UnitChoice | None,
        now_s: float,
        rivals: RivalQueue,
        *,
        behind_all: bool = False,
    ) -> float:
        """Returns when to try it: not later than now if it can go there; inf: when something has changed. `behind_all`:
        however much is ahead.
        """
        if choice is None or not self._has_room(request):
            return math.inf
        ttft_s = min(request.slo.ttft_s, self._ttft_targets_s.get(request.model, math.inf))
        ahead_share = _AHEAD_SHARE if len(rivals.tenants_s) > 1 else _AHEAD_SHARE_ALONE
        too_far_ahead_s = choice.before_s - max(ahead_share * ttft_s, _LEAST_AHEAD_S)
        if too_far_ahead_s > _ROUNDING_S and not behind_all:
            return now_s + max(too_far_ahead_s, _LEAST_PAUSE_S)
        return now_s

    def _admit(self, request: AdmissionRequest, choice: UnitChoice, now_s: float, rivals: RivalQueue) -> Admit:
        output_tokens = self._output_tokens(request)
        tokens = request.prompt_tokens + output_tokens
        reserved = self._ledger.reserve(request.request_id, request.model, tokens, gives_way=request.gives_way)
        assert reserved, "the ledger had room"
        rivals.turns.charge(
            request.model, request.tenant, prompt_tokens=request.prompt_tokens, output_tokens=output_tokens
        )
        self._running[request.request_id] = _Admitted(request, output_tokens, now_s, choice.prefill_s)
        self._before_first[request.model] = self._before_first.get(request.model, 0) + 1
        self._ledger.true_up(request.request_id, request.prompt_tokens)
        came_s = self._came_s(request, now_s)
        self._router.sent(request, choice, now_s, due_s=came_s + request.slo.ttft_s)
        return Admit(choice=choice, came_s=came_s)

    def _has_turn(self, waiting: Waiting, now_s: float) -> None:
        request = waiting.request
        output_tokens = self._running[request.request_id].output_tokens
        charged = virtual_tokens(prompt_tokens=request.prompt_tokens, output_tokens=output_tokens)
        self._observe(request.model, now_s, left=1, virtual_tokens=charged, work=waiting.work)

    def _credit(self, request: AdmissionRequest, rivals: RivalQueue) -> float:
        """What the tenant's fair share yields in one TTFT target of the model (not of the request: a client could ask
        for credit). If all tenants come back at once, the others are late by one TTFT target at most.
        """
        turns, model = rivals.turns, request.model
        tenants = max(1, turns.num_tenants(model) + (not turns.tenant_size(model, request.tenant)))
        drain = self._learner(model).drain
        return drain.virtual_tokens_per_s * self._ttft_targets_s.get(model, 0.0) / tenants

    def _output_tokens(self, request: AdmissionRequest) -> int:
        return self.lengths.predicted_tokens(request.model, max_tokens=request.max_tokens)

    def _is_full(self, model: str) -> bool:
        return self.num_waiting(model) >= self._max_waiting

    def _who_makes_room(self, request: AdmissionRequest, rivals: RivalQueue) -> AdmissionRequest | None:
        """Makes room in a full queue: a first request takes the place of the last one of whoever waits with most.
        One that is late for good makes room for any of its class.
        """
        last = rivals.turns.last_of_greediest(request.model)
        if last is None:
            return None
        loser = last.request
        if loser.priority < request.priority or (loser.priority == request.priority and last.is_late):
            return loser
        theirs = rivals.turns.tenant_size(request.model, loser.tenant)
        ours = rivals.turns.tenant_size(request.model, request.tenant)
        return loser if loser.priority == request.priority and theirs > ours + 1 else None

    def _comes_too_late(self, request: AdmissionRequest, work: float, now_s: float, rivals: RivalQueue) -> bool:
        """Its client waits no longer than its target, and its turn will not come by then."""
        if request.deadline_s > self._came_s(request, now_s) + request.slo.ttft_s:
            return False
        served_per_s = self._learner(request.model).drain.work_per_s
        if served_per_s is None:
            return False
        return now_s + (rivals.turns.work_before(request) + work) / served_per_s > request.deadline_s

    def _too_late(self, request: AdmissionRequest, now_s: float) -> Outcome:
        if self._choose(request, now_s) is None:
            return self.no_capacity(request.model, now_s)
        return self._shed(request.model)

    def _shed(self, model: str) -> Shed:
        return Shed(retry_after_s=self.retry_after_s(model))

    def no_capacity(self, model: str, now_s: float) -> NoCapacity:
        return NoCapacity(retry_after_s=_whole_seconds(self.wakes.left_s(model, now_s)))

    def retry_after_s(self, model: str) -> int:
        """Returns the time until half of what waits is gone, so that those who come back find room and do not race for
        one place.
        """
        per_s = self._learner(model).drain.per_s
        if per_s is None:
            return _BLIND_RETRY_AFTER_S
        return _whole_seconds(self.num_waiting(model) / 2 / per_s if per_s > 0 else math.inf)

    def _pace(self, model: str, now_s: float) -> QueueForecast:
        """Of a model that nobody serves now nothing is expected."""
        return self._learner(model).pace(now_s) if self._router.is_ready(model) else _NO_PACE

    def _learner(self, model: str) -> QueueForecaster:
        learner = self._learners.get(model)
        if learner is None:
            learner = self._learners[model] = QueueForecaster()
        return learner

    def _observe(
        self, model: str, now_s: float, *, left: int = 0, virtual_tokens: float = 0.0, work: float = 0.0
    ) -> QueueForecaster:
        learner = self._learner(model)
        queued = self._rivals(model).turns.size(model) > 0
        learner.drain.observe(now_s, queued=queued, left=left, virtual_tokens=virtual_tokens, work=work)
        return learner


def _whole_seconds(seconds: float) -> int:
    return math.ceil(max(1.0, min(float(MAX_RETRY_AFTER_S), seconds)))
