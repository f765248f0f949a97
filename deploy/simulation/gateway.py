"""A gateway replica of a simulated fleet: the router's own `GatewayScheduler`, without HTTP."""

from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import partial

from deploy.simulation.event_queue import EventQueue
from router.admission.admission import Admit, NoCapacity, Queue, Shed
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits
from router.request_terms import AdmissionRequest
from router.routing.routing import UnitChoice
from router.view import FleetView


@dataclass(slots=True, eq=False)
class Stay:
    """An admitted request's place in the books of its gateway."""

    gateway: "SimulatedGateway"
    request: AdmissionRequest

    def on_tokens(self, num_tokens: int, now_s: float) -> None:
        if self.gateway.scheduler.produced(self.request.request_id, num_tokens, now_s):
            self.gateway.pump(self.request.model)

    def go_on(self, now_s: float, *, avoid: Set[str]) -> UnitChoice | None:
        """The request has left its unit. None while no other one can take it."""
        request_id = self.request.request_id
        self.gateway.scheduler.left(request_id, now_s)
        choice = self.gateway.scheduler.route(request_id, now_s, avoid=avoid)
        if choice is not None:
            self.gateway.scheduler.sent(request_id, choice, now_s)
        return choice

    def end(self, now_s: float, *, finished: bool, ttft_met: bool = False, tbt_met: bool = False) -> None:
        request_id = self.request.request_id
        self.gateway.scheduler.end(request_id, now_s, finished=finished, ttft_met=ttft_met, tbt_met=tbt_met)
        self.gateway.pump(self.request.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """Holds what the fleet does with an ask whose outcome is known."""

    admitted: Callable[[UnitChoice, Stay], None]
    refused: Callable[[Shed | NoCapacity], None]


class SimulatedGateway:
    """A gateway in virtual time. It tries waiting requests again when something changes, or its scheduler is due."""

    def __init__(self, *, name: str, limits: GatewayLimits, agenda: EventQueue) -> None:
        self.scheduler = GatewayScheduler(gateway_id=name, limits=limits)
        self._agenda = agenda
        self._receptions: dict[str, Reception] = {}
        self._waiting: Counter[str] = Counter()  # requests by model
        self._wakes_at_s: dict[str, float] = {}  # by the name of a group of rivals

    def holds_any(self, models: Iterable[str]) -> bool:
        """Says whether a request for one of these models waits here."""
        return bool(self._receptions) and any(self._waiting[model] for model in models)

    def on_view(self, view: FleetView) -> None:
        self.scheduler.update_view(view, self._agenda.clock.now_s)
        for rivals in self.scheduler.rivals_that_wait():
            self.pump(rivals)

    def offer(self, request: AdmissionRequest, reception: Reception) -> None:
        """Exactly one function of the reception is called, now or later."""
        decision = self.scheduler.offer(request, self._agenda.clock.now_s)
        if isinstance(decision, Queue):
            self._receptions[request.request_id] = reception
            self._waiting[request.model] += 1
            self.pump(request.model)
        else:
            self._receive(request, decision, reception)

    def pump(self, model: str) -> None:
        """Only for what competes with this model: models that share no unit find what they would find alone."""
        if not self._receptions:
            return
        for request, outcome in self.scheduler.pump(self._agenda.clock.now_s, model):
            self._waiting[request.model] -= 1
            self._receive(request, outcome, self._receptions.pop(request.request_id))
        self._sleep(self.scheduler.rivals(model))

    def _receive(self, request: AdmissionRequest, outcome: Admit | Shed | NoCapacity, reception: Reception) -> None:
        if isinstance(outcome, Admit):
            reception.admitted(outcome.choice, Stay(gateway=self, request=request))
        else:
            reception.refused(outcome)

    def _sleep(self, rivals: str) -> None:
        """One action on the agenda for each group at a time: a later one finds that it is not needed."""
        next_s = self.scheduler.next_pump_s(rivals)
        if next_s is None or next_s == float("inf"):
            return
        now_s = self._agenda.clock.now_s
        at_s = max(now_s, next_s)
        wakes_at_s = self._wakes_at_s.get(rivals)
        if wakes_at_s is None or at_s < wakes_at_s or wakes_at_s < now_s:
            self._wakes_at_s[rivals] = at_s
            self._agenda.wake_at(at_s, partial(self._wake, rivals, at_s))

    def _wake(self, rivals: str, at_s: float) -> None:
        if self._wakes_at_s.get(rivals) == at_s:
            del self._wakes_at_s[rivals]
            self.pump(rivals)
