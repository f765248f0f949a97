"""Chooses the unit for a request: by what units report, what was sent since, and where prefixes may be cached."""

import math
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from router.request_terms import AdmissionRequest
from router.routing.prefix_index import PrefixIndex
from router.routing.routing_table import Candidates, Floats, RoutingTable, UnreportedLoad
from router.view import FleetView

Reason = Literal["predicted", "power_of_two", "stale"]
REASONS: tuple[Reason, ...] = get_args(Reason)

_AFFINITY_WEIGHT = 0.5  # of a second of prefill that a cached prefix saves the unit, beyond the request's own gain
_LOAD_WEIGHT = 0.05  # of a request running there, in prefills of the new one
_TIE_SHARE = 0.05  # predictions this close are the same
_EXPLORED_SHARE = 0.1  # of the requests, spread evenly while all reports are stale


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitChoice:
    """`wait_s` until the unit has done all that is there, then `prefill_s`; 0 when nothing can be predicted. `before_s`
    is what goes before the request there: units serve by due time. One that `hands_over` is for prompts: another one
    goes on after the first token.
    """

    unit_id: str
    endpoint: str
    max_model_len: int
    reason: Reason
    wait_s: float = 0.0
    before_s: float = 0.0
    prefill_s: float = 0.0
    prefix_tokens: int = 0
    hands_over: bool = False

    @property
    def predicted_ttft_s(self) -> float:
        return self.wait_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingHints:
    """`matched_tokens` of the prompt may be cached, by unit. `salt` names the gateway: among equals gateways differ.
    `due_s`: when the first token should be there. `goes_on`: its prompt has been computed, and units for decode come
    first; else they come last.
    """

    due_s: float = math.inf
    goes_on: bool = False
    matched_tokens: Mapping[str, int] = field(default_factory=dict)
    avoid: Set[str] = frozenset()
    salt: str = ""


def choose_unit(
    table: RoutingTable,
    request: AdmissionRequest,
    own: UnreportedLoad,
    now_s: float,
    *,
    stale_after_s: float,
    hints: RoutingHints = RoutingHints(),
) -> UnitChoice | None:
    """The unit with the model ready, by the weights that the request was made for, room for its context, and the
    earliest predicted first token, weighed against how crowded it is and what its prefix cache saves; None if there is
    none.

    A report older than `stale_after_s` tells too little to predict from. Without predictions the less loaded of
    two drawn units; while no report is fresh, two drawn by the last good ones. A unit whose report alone is stale is
    taken when the fresh ones would miss the request's TTFT target.
    """
    candidates = table.by_model.get(request.model)
    if candidates is None:
        return None
    lengths = candidates.max_model_len
    if (have_them := candidates.have(request.weights)) is not None:
        lengths = np.where(have_them, lengths, 0)
    usable = lengths >= request.needed_tokens
    if request.fills_context:  # the longest take less than when it came, and it ends there
        usable |= (lengths == lengths.max()) & (lengths > request.prompt_tokens)
    if request.constrained:
        usable &= candidates.constrains
    for unit_id in hints.avoid:
        if (position := candidates.position.get(unit_id)) is not None:
            usable[position] = False
    if not usable.any():
        return None
    hands_over = False
    if candidates.has_roles:
        hands_over = not hints.goes_on and request.max_tokens > 1 and bool((usable & candidates.decode).any())
        fitting = usable & ~(candidates.prefill if hints.goes_on else candidates.decode)
        usable = fitting if fitting.any() else usable
    fresh = now_s - table.heard_s[candidates.unit] <= stale_after_s
    draw = zlib.crc32(f"{hints.salt}/{request.request_id}".encode())
    scene = _Scene(table, candidates, own, request, now_s, hints, hands_over)
    if not (fresh & usable).any():
        weights = scene.last_good_weights()
        return scene.choice(_drawn(usable, weights, scene.own_counts() / weights, draw), "stale")
    if not candidates.has_prediction:
        even = np.ones(len(usable))
        return scene.choice(_drawn(usable & fresh, even, scene.load(), draw), "power_of_two")
    return scene.choice(scene.best(usable, fresh, draw), "predicted")


@dataclass(slots=True, eq=False)
class _Scene:
    """One choice in the making; positions are those of the model's candidates."""

    table: RoutingTable
    candidates: Candidates
    own: UnreportedLoad
    request: AdmissionRequest
    now_s: float
    hints: RoutingHints
    hands_over: bool  # where the unit is for prompts

    def best(self, usable: npt.NDArray[np.bool_], fresh: npt.NDArray[np.bool_], draw: int) -> int:
        full_s = self.candidates.base_s + self.request.prompt_tokens * self.candidates.per_token_s
        score = self._wait_s() + full_s * (1.0 + _LOAD_WEIGHT * self.load())
        for unit_id, tokens in self.hints.matched_tokens.items():
            position = self.candidates.position.get(unit_id)
            if position is not None:
                saved_s = min(tokens, self.request.prompt_tokens) * self.candidates.per_token_s[position]
                score[position] -= (1.0 + _AFFINITY_WEIGHT) * saved_s
        # Neither is a reason to stay away for good: where all are crowded or stale, all pay the same.
        score += self.request.slo.ttft_s * (self.candidates.crowded.astype(float) + ~fresh)
        score[~usable] = np.inf
        least = float(score.min())
        ties = np.flatnonzero(score <= least + _TIE_SHARE * abs(least))
        return int(ties[draw % len(ties)])

    def last_good_weights(self) -> Floats:
        """Weighs units by the first token that each one's last report promised; evenly for the explored share."""
        candidates = self.candidates
        number = len(candidates.unit)
        if not candidates.has_prediction:
            return np.ones(number)
        backlog_s = (self.table.free_at_s - self.table.reported_s)[candidates.unit]
        promised_s = candidates.base_s + self.request.prompt_tokens * candidates.per_token_s + backlog_s
        good = 1.0 / np.maximum(promised_s, 1e-6)
        weights: Floats = (1.0 - _EXPLORED_SHARE) * good / good.sum() + _EXPLORED_SHARE / number
        return weights

    def own_counts(self) -> Floats:
        """Returns what this gateway has on each candidate now: all that is known for certain while no report comes."""
        return np.array([self.own.count(unit_id) for unit_id in self.candidates.position], dtype=float)

    def load(self) -> Floats:
        """Requests per GPU, of all models: they share the device."""
        rows = self.candidates.unit
        load: Floats = self.own.requests[rows] / self.table.num_gpus[rows]
        return load

    def choice(self, position: int, reason: Reason) -> UnitChoice:
        candidates = self.candidates
        row = int(candidates.unit[position])
        unit_id = self.table.unit_ids[row]
        matched = min(self.hints.matched_tokens.get(unit_id, 0), self.request.prompt_tokens)
        wait_s = before_s = prefill_s = 0.0
        if candidates.has_prediction:
            wait_s = max(0.0, float(self.own.free_at_s[row]) - self.now_s)
            before_s = self.own.before_s(unit_id, row, wait_s, due_s=self.hints.due_s, now_s=self.now_s)
            new_tokens = self.request.prompt_tokens - matched
            prefill_s = float(candidates.base_s[position] + new_tokens * candidates.per_token_s[position])
        return UnitChoice(
            unit_id=unit_id,
            endpoint=self.table.endpoints[row],
            max_model_len=int(candidates.max_model_len[position]),
            reason=reason,
            wait_s=wait_s,
            before_s=before_s,
            prefill_s=prefill_s,
            prefix_tokens=matched,
            hands_over=self.hands_over and bool(candidates.prefill[position]),
        )

    def _wait_s(self) -> Floats:
        return np.maximum(self.own.free_at_s[self.candidates.unit] - self.now_s, 0.0)


def _drawn(pool: npt.NDArray[np.bool_], weights: Floats, load: Floats, draw: int) -> int:
    """The less loaded of two different units that are drawn by weight."""
    weights = np.where(pool, weights, 0.0)
    first = _pick(weights, (draw & 0xFFFF) / 0x10000)
    weights[first] = 0.0
    if not weights.any():
        return first
    second = _pick(weights, (draw >> 16) / 0x10000)
    return first if load[first] <= load[second] else second


def _pick(weights: Floats, at: float) -> int:
    """The position where the cumulated weights pass the share `at` of their sum."""
    cumulated = np.cumsum(weights)
    return min(int(np.searchsorted(cumulated, at * cumulated[-1], side="right")), int(np.flatnonzero(weights)[-1]))


_NO_UNITS = FleetView(models=(), units=(), stream_token="")


class UnitRouter:
    """A request that was `sent` to a unit counts as its load until it `left`."""

    def __init__(self, gateway_id: str, *, stale_after_s: float) -> None:
        self._gateway_id = gateway_id
        self._stale_after_s = stale_after_s
        self._table = RoutingTable.of(_NO_UNITS, 0.0)
        self._own = UnreportedLoad(self._table)
        self._prefixes = PrefixIndex()
        self._unreachable: Set[str] = frozenset()

    def update_view(self, view: FleetView, now_s: float) -> None:
        self._table = RoutingTable.of(view, now_s)
        self._own.rebase(self._table)
        self._prefixes.forget_units_but(self._table.row)

    def set_unreachable(self, unit_ids: Set[str]) -> bool:
        """Units that connections to failed a moment ago are left out until they can be tried again. True if some can be
        by now.
        """
        before, self._unreachable = self._unreachable, unit_ids
        return not before <= unit_ids

    def is_ready(self, model: str) -> bool:
        return model in self._table.by_model

    def models_of_units(self) -> Sequence[frozenset[str]]:
        """Returns the models that each unit has ready."""
        return self._table.models

    def models_beside(self, request_id: str) -> frozenset[str]:
        """Returns the models of the unit that a request was sent to."""
        row = self._table.row.get(self._own.unit_of(request_id))
        return frozenset() if row is None else self._table.models[row]

    def choose(
        self,
        request: AdmissionRequest,
        now_s: float,
        *,
        due_s: float,
        avoid: Set[str] = frozenset(),
        goes_on: bool = False,
    ) -> UnitChoice | None:
        """None while no unit can take it. `due_s` and `goes_on` as of RoutingHints."""
        hints = RoutingHints(
            matched_tokens=self._prefixes.matched_tokens(
                request.prefix, model=request.model, conversation=request.conversation, tokens=request.prompt_tokens
            ),
            due_s=due_s,
            goes_on=goes_on,
            avoid=avoid | self._unreachable if self._unreachable else avoid,
            salt=self._gateway_id,
        )
        return choose_unit(self._table, request, self._own, now_s, stale_after_s=self._stale_after_s, hints=hints)

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

    def left(self, request_id: str, now_s: float) -> None:
        """It ended there, or the unit was lost."""
        self._own.left(request_id, now_s)
