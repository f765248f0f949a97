"""All that a gateway decides, without I/O: who enters, in which order, on which unit. The simulator calls it too."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from pdmux_actor.messages import Slo
from router.admission.admission import Admission, Admit, Decision, NoCapacity, Outcome, Queue, Shed
from router.admission.block_ledger import QuotaLedger, block_budgets
from router.admission.demand_counts import DemandCounts
from router.admission.demand_report import DemandReport
from router.limits import GatewayLimits
from router.request_terms import AdmissionRequest, left_of
from router.routing.routing import UnitChoice, UnitRouter
from router.view import FleetView, wake_times


@dataclass(slots=True, eq=False)
class _Running:
    """An admitted request. `is_prefilling` where it is, or was sent to: nothing has come from there."""

    request: AdmissionRequest
    due_s: float  # its first token
    waited_s: float
    tokens: int = 0
    has_token: bool = False
    is_on_unit: bool = True
    is_prefilling: bool = True


class GatewayScheduler:
    """Order of calls for a request: `offer`, and if it was queued `pump` until its outcome comes; when admitted, it
    counts as sent to the unit chosen; `produced` with each output; when the unit is lost `left`, then `route` and
    `sent` for the next one; `end` exactly once. `withdraw` ends one that waits. Times are those of any one clock.
    """

    def __init__(
        self,
        *,
        gateway_id: str,
        limits: GatewayLimits | None = None,
    ) -> None:
        limits = limits or GatewayLimits()
        self.gateway_id = gateway_id
        self.ledger = QuotaLedger()
        self._router = UnitRouter(gateway_id, stale_after_s=limits.stale_after_s)
        self.admission = Admission(self._router, self.ledger, max_waiting=limits.max_queued)
        self._arrivals = DemandCounts()
        self._own_targets: dict[str, Slo] = {}
        self._running: dict[str, _Running] = {}
        self._without_unit: dict[str, float] = {}  # of those: since when, of requests that lost theirs
        self._held: dict[str, int] = {}
        self._held_low: dict[str, int] = {}

    def update_view(self, view: FleetView, now_s: float) -> None:
        """Call `pump` after it."""
        self._router.update_view(view, now_s)
        self.ledger.update(block_budgets(view), num_gateways=view.num_gateways)
        self._own_targets = {card.model: card.slo for card in view.models}
        targets_s = {card.model: card.slo.ttft_s for card in view.models}
        self._arrivals.keep_models(frozenset(targets_s))
        self.admission.keep_models(targets_s)
        self.admission.wakes.asleep(wake_times(view))
        self.admission.on_view(now_s)

    def set_unreachable(self, unit_ids: Set[str]) -> None:
        """Units that connections to failed a moment ago are left out until they can be tried again. Then `pump` finds
        what waits for them.
        """
        if self._router.set_unreachable(unit_ids):
            self.admission.units_are_back()

    # ---- admission ----

    def offer(self, request: AdmissionRequest, now_s: float) -> Decision:
        self._arrivals.asked(request.model, request.prompt_tokens)
        if (own := self._own_targets.get(request.model)) is not None:
            self._arrivals.targets(request.model, request.slo, own)
        decision = self.admission.offer(request, now_s)
        if not isinstance(decision, Queue):
            self._note(request, decision, now_s)
        return decision

    @contextmanager
    def holding(self, model: str, now_s: float, *, gives_way: bool) -> Iterator[None]:
        """A request waits for the first unit of a model of which nothing is known yet, and cannot be offered before."""
        self._held[model] = self._held.get(model, 0) + 1
        self._held_low[model] = self._held_low.get(model, 0) + gives_way
        self.admission.wakes.held(model, now_s)
        try:
            yield
        finally:
            self._held[model] -= 1
            self._held_low[model] -= gives_way

    def turned_away(self, model: str, *, is_judged: bool) -> int:
        """A full queue was seen before the request was worked on. Returns when to try again."""
        self._arrivals.asked(model, 0)
        if is_judged:
            self._arrivals.shed(model)
        return self.admission.retry_after_s(model)

    def gave_up(self, model: str, prompt_tokens: int, now_s: float, *, is_judged: bool) -> int:
        """A held request waited in vain. Returns in how many seconds trying again makes sense."""
        self._arrivals.asked(model, prompt_tokens)
        if is_judged:
            self._arrivals.no_capacity(model)
        return self.admission.no_capacity(model, now_s).retry_after_s

    def pump(self, now_s: float, model: str | None = None) -> Sequence[tuple[AdmissionRequest, Outcome]]:
        """`model`: only of those that compete with it for units."""
        outcomes = self.admission.pump(now_s, model)
        for request, outcome in outcomes:
            self._note(request, outcome, now_s)
        return outcomes

    def next_pump_s(self, model: str | None = None) -> float | None:
        """Returns when time alone makes `pump` find something; None while nothing waits."""
        return self.admission.next_pump_s(model)

    def rivals(self, model: str) -> str:
        """Names the group of models that compete with this one for units, by one of them: until the next view."""
        return self.admission.rivals_name(model)

    def rivals_that_wait(self) -> Sequence[str]:
        """Returns the names of such groups of which something waits."""
        return [queue.name for queue in self.admission.queues.in_use()]

    def withdraw(self, request_id: str) -> None:
        """The client of a request that waits has left."""
        self.admission.withdraw(request_id)

    def _note(self, request: AdmissionRequest, outcome: Outcome, now_s: float) -> None:
        match outcome:
            case Shed() if not request.gives_way:
                self._arrivals.shed(request.model)
            case NoCapacity() if not request.gives_way:
                self._arrivals.no_capacity(request.model)
            case Admit(came_s=came_s):
                due_s = came_s + request.slo.ttft_s
                self._running[request.request_id] = _Running(request, due_s, now_s - came_s)

    # ---- routing ----

    def route(
        self, request_id: str, now_s: float, *, avoid: Set[str] = frozenset(), is_prefilled: bool = False
    ) -> UnitChoice | None:
        """Returns where an admitted request goes (on). None while no unit can take it. `is_prefilled`: a unit has
        computed its prompt, whether or not it has told a token.
        """
        running = self._running[request_id]
        request, goes_on = running.request, is_prefilled or running.tokens > 0
        return self._router.choose(request, now_s, due_s=now_s + request.slo.ttft_s, avoid=avoid, goes_on=goes_on)

    def slo_left(self, request_id: str) -> Slo:
        """Targets of an admitted request for the unit: what it has waited for its turn is taken off."""
        running = self._running[request_id]
        is_whole = running.has_token or not running.waited_s
        return running.request.slo if is_whole else left_of(running.request.slo, running.waited_s)

    def sent(self, request_id: str, choice: UnitChoice, now_s: float) -> None:
        """It goes on at another unit than the one it was admitted to."""
        running = self._running[request_id]
        request = running.request
        running.is_on_unit = running.is_prefilling = True
        self._without_unit.pop(request_id, None)
        self._router.sent(request, choice, now_s, due_s=running.due_s)
        self.ledger.true_up(request_id, request.prompt_tokens + running.tokens)

    def produced(self, request_id: str, num_tokens: int, now_s: float) -> bool:
        """More output came: `num_tokens` for good, 0 of half a character, which another unit would have to say again.
        True if the unit has thereby become free sooner than thought, and something waits that may want it: call `pump`
        for the model.
        """
        running = self._running[request_id]
        running.tokens += num_tokens
        self.ledger.true_up(request_id, running.request.prompt_tokens + running.tokens)
        if running.has_token and not running.is_prefilling:
            return False
        if not running.has_token:
            running.has_token = True
            self.admission.on_first_token(request_id, now_s)
        if running.is_on_unit and running.is_prefilling:
            running.is_prefilling = False
            self.admission.unit_is_free_sooner(self._router.models_beside(request_id))
            self._router.first_token(request_id, now_s)
        return self.admission.competes(running.request.model)

    def left(self, request_id: str, now_s: float) -> None:
        """It is no longer on the unit it was sent to, if it was."""
        running = self._running[request_id]
        if running.is_on_unit:
            running.is_on_unit = False
            self._without_unit[request_id] = now_s
            if running.is_prefilling:  # the rest of its prompt is not computed there
                self.admission.unit_is_free_sooner(self._router.models_beside(request_id))
            self.admission.left(request_id)
            self._router.left(request_id, now_s)

    def end(
        self, request_id: str, now_s: float, *, finished: bool, ttft_met: bool = False, tbt_met: bool = False
    ) -> None:
        """Ends an admitted request. `finished`: it was answered to its end. Call `pump` for its model after it."""
        self.left(request_id, now_s)
        running = self._running.pop(request_id)
        self._without_unit.pop(request_id, None)
        self.admission.end(
            request_id, output_tokens=running.tokens, had_first_token=running.has_token, finished=finished
        )
        self._arrivals.ended(
            running.request.model,
            output_tokens=running.tokens,
            finished=finished and not running.request.gives_way,
            ttft_met=ttft_met,
            tbt_met=tbt_met,
        )

    # ---- reports ----

    def waiting_tokens(self) -> Mapping[str, int]:
        """Returns the prompt tokens of those that wait here for their turn, by tenant."""
        found: dict[str, int] = {}
        for request, _ in self.admission.waiting():
            found[request.tenant] = found.get(request.tenant, 0) + request.prompt_tokens
        return found

    def is_ready(self, model: str) -> bool:
        return self._router.is_ready(model)

    def demand_report(self, now_s: float) -> DemandReport:
        lost_theirs = [(self._running[i].request, since_s) for i, since_s in self._without_unit.items()]
        return self._arrivals.report(
            self.gateway_id,
            [*self.admission.waiting(), *lost_theirs],
            held=self._held,
            held_low=self._held_low,
            before_first=self.admission.num_waiting,
            is_ready=self.is_ready,
            now_s=now_s,
        )
