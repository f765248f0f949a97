"""Token blocks that a gateway has promised to requests, per model, across all units that serve the model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import LoadReport, ModelLoad
from placement.unit_role import UnitRole
from router.view import FleetView, UnitView

LENDABLE_SHARE = 0.5
"""Of a unit's blocks that nobody uses, what a model may have beyond its quota; engines lend as much by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBudget:
    """Holds what a model's units offer it. A sequence of n tokens takes ceil(n / tokens_per_row) rows of
    `blocks_per_row`.
    """

    blocks: int
    used_blocks: int
    blocks_per_row: int
    tokens_per_row: int

    def cost_blocks(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_row) * self.blocks_per_row


def block_budgets(view: FleetView) -> Mapping[str, BlockBudget]:
    """Computes the budgets of the models that a unit has ready and tells the layout of; the others are not metered.
    Where units for decode have a model, its requests spend their time there, and the blocks of those for prompts do not
    count.
    """
    decoding = [u for u in view.units if u.report.role is not UnitRole.PREFILL]
    budgets = _budgets(decoding)
    return budgets if len(decoding) == len(view.units) else {**_budgets(view.units), **budgets}


def _budgets(units: Iterable[UnitView]) -> Mapping[str, BlockBudget]:
    offers: dict[str, list[tuple[int, ModelLoad]]] = {}
    for unit in units:
        load = unit.report.load
        ready = {s.model for s in unit.report.models if s.phase is ModelPhase.READY}
        for model in () if load is None else load.models:
            if model.model in ready and model.quota_blocks > 0 and model.blocks_per_row and model.tokens_per_row:
                assert load is not None
                own_blocks = max(model.quota_blocks, model.used_blocks)
                blocks = own_blocks + int(LENDABLE_SHARE * _idle_blocks(load, model, own_blocks))
                offers.setdefault(model.model, []).append((blocks, model))
    return {
        model: BlockBudget(
            blocks=sum(blocks for blocks, _ in of_model),
            used_blocks=sum(load.used_blocks for _, load in of_model),
            blocks_per_row=of_model[0][1].blocks_per_row,
            tokens_per_row=of_model[0][1].tokens_per_row,
        )
        for model, of_model in offers.items()
    }


def _idle_blocks(load: LoadReport, model: ModelLoad, own_blocks: int) -> int:
    """Blocks that nobody uses, beyond the model's `own_blocks`. Those in a neighbour's quota are among
    them: the unit takes them back as soon as the neighbour needs them.
    """
    others = sum(m.used_blocks for m in load.models if m.model != model.model)
    return max(0, load.total_blocks - own_blocks - others)


@dataclass(slots=True, eq=False)
class _Reservation:
    model: str
    reserved_tokens: int
    actual_tokens: int
    blocks: int
    gives_way: bool


class QuotaLedger:
    """Reserves at admission, never beyond what there is: a model's first request alone may exceed it, since only a unit
    can tell that it never fits. What a request really takes is a fact: `true_up` may exceed, and then nothing more is
    reserved until it is paid back. Released exactly once. What requests that give way hold is room for the others, to
    whom units give it.
    """

    def __init__(self) -> None:
        self._budgets: Mapping[str, BlockBudget] = {}
        self._reservations: dict[str, _Reservation] = {}
        self._held: dict[str, int] = {}
        self._yielding: dict[str, int] = {}  # of what is held, by requests that give way
        self._actual_tokens: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._actual_before: dict[str, int] = {}

    def update(self, budgets: Mapping[str, BlockBudget], *, num_gateways: int) -> None:
        """Other gateways hold what units report beyond what this one has put there. Reports are a moment old: what this
        gateway held at the last update counts as well as what it holds now.
        """
        self._others = {}
        for model, budget in budgets.items():
            own = self._actual_tokens.get(model, 0)
            if num_gateways > 1:
                known = max(own, self._actual_before.get(model, 0))
                self._others[model] = max(0, budget.used_blocks - budget.cost_blocks(known))
            self._actual_before[model] = own
        layouts_changed = any(
            (old := self._budgets.get(m)) is None or old.cost_blocks(1 << 20) != b.cost_blocks(1 << 20)
            for m, b in budgets.items()
        )
        # A model that no unit serves now keeps its layout: its requests go on elsewhere soon.
        self._budgets = {**self._budgets, **budgets}
        if layouts_changed:
            self._recount()

    def reserve(self, request_id: str, model: str, tokens: int, *, gives_way: bool = False) -> bool:
        """False: no room. `tokens` are the prompt and the predicted output."""
        assert request_id not in self._reservations, f"{request_id} has a reservation"
        blocks = self._cost(model, tokens)
        if not self._fits(model, blocks, gives_way=gives_way):
            return False
        self._reservations[request_id] = _Reservation(model, tokens, 0, blocks, gives_way)
        self._hold(self._reservations[request_id], blocks)
        self._actual_tokens.setdefault(model, 0)
        return True

    def has_room(self, model: str, tokens: int, *, gives_way: bool = False) -> bool:
        return self._fits(model, self._cost(model, tokens), gives_way=gives_way)

    def true_up(self, request_id: str, actual_tokens: int) -> None:
        """The request has so many tokens by now, prompt and output."""
        entry = self._reservations[request_id]
        self._actual_tokens[entry.model] += actual_tokens - entry.actual_tokens
        entry.actual_tokens = actual_tokens
        if actual_tokens > entry.reserved_tokens:
            blocks = self._cost(entry.model, actual_tokens)
            self._hold(entry, blocks - entry.blocks)
            entry.reserved_tokens, entry.blocks = actual_tokens, blocks

    def release(self, request_id: str) -> None:
        entry = self._reservations.pop(request_id, None)
        assert entry is not None, f"{request_id} has no reservation, or gave it back before"
        self._hold(entry, -entry.blocks)
        self._actual_tokens[entry.model] -= entry.actual_tokens

    def holds(self, request_id: str) -> bool:
        return request_id in self._reservations

    def held_blocks(self, model: str) -> int:
        return self._held.get(model, 0)

    def capacity_blocks(self, model: str) -> int | None:
        """Returns what this gateway may hold; None for a model that is not metered."""
        budget = self._budgets.get(model)
        return None if budget is None else max(0, budget.blocks - self._others.get(model, 0))

    def free_blocks(self, model: str) -> int:
        capacity = self.capacity_blocks(model)
        return 0 if capacity is None else max(0, capacity - self.held_blocks(model))

    def models(self) -> Iterable[str]:
        return self._budgets.keys()

    def _fits(self, model: str, blocks: int, *, gives_way: bool) -> bool:
        yielding = 0 if gives_way else self._yielding.get(model, 0)
        held = self.held_blocks(model) - yielding
        return held <= 0 or blocks + held <= (self.capacity_blocks(model) or 0)

    def _hold(self, entry: _Reservation, blocks: int) -> None:
        self._held[entry.model] = self.held_blocks(entry.model) + blocks
        if entry.gives_way:
            self._yielding[entry.model] = self._yielding.get(entry.model, 0) + blocks

    def _cost(self, model: str, tokens: int) -> int:
        budget = self._budgets.get(model)
        return 0 if budget is None else budget.cost_blocks(tokens)

    def _recount(self) -> None:
        self._held, self._yielding = {}, {}
        for entry in self._reservations.values():
            entry.blocks = self._cost(entry.model, entry.reserved_tokens)
            self._hold(entry, entry.blocks)
