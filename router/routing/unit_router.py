"""Routes a gateway's requests: by what units report, what was sent since, and where prefixes may be cached."""

from collections.abc import Set

from router.admission_request import AdmissionRequest
from router.routing.prefix_index import PrefixIndex
from router.routing.routing import RoutingHints, RoutingSettings, UnitChoice, choose_unit
from router.routing.routing_table import RoutingTable
from router.routing.unreported_load import UnreportedLoad
from router.view import FleetView

_NO_UNITS = FleetView(models=(), units=(), stream_token="")


class UnitRouter:
    """A request that was `sent` to a unit counts as its load until it `left`."""

    def __init__(self, gateway_id: str, settings: RoutingSettings) -> None:
        self._gateway_id = gateway_id
        self._settings = settings
        self._table = RoutingTable.of(_NO_UNITS, 0.0)
        self._own = UnreportedLoad(self._table)
        self._prefixes = PrefixIndex()
        self._unreachable: Set[str] = frozenset()

    def update_view(self, view: FleetView, now_s: float) -> None:
        self._table = RoutingTable.of(view, now_s)
        self._own.rebase(self._table)
        self._prefixes.forget_units_but(self._table.row)

    def set_unreachable(self, unit_ids: Set[str]) -> None:
        """Units that connections to failed a moment ago are left out until they can be tried again."""
        self._unreachable = unit_ids

    def is_ready(self, model: str) -> bool:
        return model in self._table.by_model

    def choose(
        self, request: AdmissionRequest, now_s: float, *, due_s: float, avoid: Set[str] = frozenset()
    ) -> UnitChoice | None:
        """None while no unit can take it. `due_s`: when its first token should be there."""
        hints = RoutingHints(
            matched_tokens=self._prefixes.matched_tokens(
                request.prefix, model=request.model, conversation=request.conversation, tokens=request.prompt_tokens
            ),
            due_s=due_s,
            avoid=avoid | self._unreachable if self._unreachable else avoid,
            salt=self._gateway_id,
        )
        return choose_unit(self._table, request, self._own, now_s, hints=hints, settings=self._settings)

    def sent(self, request: AdmissionRequest, choice: UnitChoice, now_s: float, *, due_s: float) -> None:
        self._own.sent(request.request_id, choice.unit_id, prefill_s=choice.prefill_s, now_s=now_s, due_s=due_s)
        self._prefixes.record(
            request.prefix,
            choice.unit_id,
            model=request.model,
            conversation=request.conversation,
            tokens=request.prompt_tokens,
        )

    def first_token(self, request_id: str, now_s: float) -> None:
        self._own.first_token(request_id, now_s)

    def left(self, request_id: str) -> None:
        """It ended there, or the unit was lost."""
        self._own.left(request_id)
