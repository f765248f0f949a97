"""Defines what clients asked a gateway for: the control loop places models by it."""

from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCount:
    """`target_s` is what the requests asked for or up to a tenth less."""

    target_s: float
    requests_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """Totals since the gateway started, of every request for an offered model: also of those held, shed or failed.

    `waiting` requests have no first token yet. `held` ones wait because no unit has the model ready, among them
    those that lost theirs, with or without a token: they wake a model that is scaled to zero. `held_low` of them are of
    low priority. `oldest_wait_s`: how
    long the first that waits at the gateway has done so. `shed` ones were turned away by overload, `no_capacity`
    ones because no unit came in time. `finished` ones were answered to the end; of them `ttft_met` had their first
    token within its target, `tbt_met` every gap, and `in_time` both. These figures, from `shed` on, leave out
    requests of low priority: they have what others leave. `ttft_targets` and `tbt_targets` are of the requests that
    were granted other targets than their model's.
    """

    model: str
    requests_total: int
    prompt_tokens_total: int
    output_tokens_total: int
    waiting: int = 0
    held: int = 0
    held_low: int = 0
    oldest_wait_s: float = 0.0
    shed_total: int = 0
    no_capacity_total: int = 0
    finished_total: int = 0
    ttft_met_total: int = 0
    tbt_met_total: int = 0
    in_time_total: int = 0
    ttft_targets: tuple[TargetCount, ...] = ()
    tbt_targets: tuple[TargetCount, ...] = ()


_SUMMED = ("waiting", "held", "held_low", *(f.name for f in fields(ModelAsked) if f.name.endswith("_total")))


def added(one: ModelAsked, other: ModelAsked) -> ModelAsked:
    """Sums what two gateways count of a model; targets are left out."""
    sums: dict[str, Any] = {name: getattr(one, name) + getattr(other, name) for name in _SUMMED}
    oldest_wait_s = max(one.oldest_wait_s, other.oldest_wait_s)
    return replace(one, oldest_wait_s=oldest_wait_s, ttft_targets=(), tbt_targets=(), **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """Sent with every request for a view. `gateway_id` is new for every start of a gateway."""

    gateway_id: str
    models: tuple[ModelAsked, ...]
