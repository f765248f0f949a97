"""A gateway replica of a simulated fleet: the router's own admission and routing, without HTTP."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pdmux_actor.lease import ModelPhase
from router.admission import CompletionRate, Decision, admit
from router.in_flight import InFlight
from router.limits import GatewayLimits
from router.routing import UnitChoice, choose_unit
from router.view import FleetView


@dataclass(slots=True)
class Stay:
    """A request's place in the books of its gateway."""

    gateway: "SimulatedGateway"
    model: str
    on_unit: AbstractContextManager[None]
    queued: bool = True

    def on_first_token(self, now_s: float) -> None:
        self.queued = False
        self.gateway.in_flight.leave_queue(self.model)
        self.gateway.rate(self.model).record(now_s)

    def end(self) -> None:
        if self.queued:
            self.gateway.in_flight.leave_queue(self.model)
        self.on_unit.__exit__(None, None, None)


class SimulatedGateway:
    def __init__(self, *, name: str, limits: GatewayLimits) -> None:
        self.in_flight = InFlight()
        self._name = name
        self._limits = limits
        self._rates: dict[str, CompletionRate] = {}

    def rate(self, model: str) -> CompletionRate:
        return self._rates.setdefault(model, CompletionRate())

    def on_view(self) -> None:
        self.in_flight.on_view()

    def admit(self, view: FleetView, model: str, now_s: float) -> Decision:
        rate = self._rates.get(model)
        return admit(
            queued=self.in_flight.queued(model),
            max_queued=self._limits.max_queued,
            completions_per_s=0.0 if rate is None else rate.per_s(now_s),
            ready=any(s.model == model and s.phase is ModelPhase.READY for u in view.units for s in u.report.models),
            now_s=now_s,
            hold_s=self._limits.hold_s,
        )

    def choose(self, view: FleetView, model: str, needed_tokens: int) -> UnitChoice | None:
        """None when no unit has room for so long a context."""
        return choose_unit(
            view,
            model,
            own=self.in_flight.own_load,
            needed_tokens=needed_tokens,
            stale_after_s=self._limits.stale_after_s,
            salt=self._name,
        )

    def enter(self, model: str, unit_id: str) -> Stay:
        on_unit = self.in_flight.on_unit(unit_id)
        on_unit.__enter__()
        self.in_flight.enter_queue(model)
        return Stay(gateway=self, model=model, on_unit=on_unit)
