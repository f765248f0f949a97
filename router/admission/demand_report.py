"""Defines what clients asked a gateway for: the control loop places models by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCount:
    """`target_s` is what the requests asked for or up to a tenth less."""

    target_s: float
    requests_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """Totals since the gateway started, of every request for an offered model: also of those held, shed or failed.

    `waiting` requests have no first token yet. `held` ones wait because no unit has the model ready, among them
    those that lost theirs, with or without a token: they wake a model that is scaled to zero. `oldest_wait_s`: how
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
    oldest_wait_s: float = 0.0
    shed_total: int = 0
    no_capacity_total: int = 0
    finished_total: int = 0
    ttft_met_total: int = 0
    tbt_met_total: int = 0
    in_time_total: int = 0
    ttft_targets: tuple[TargetCount, ...] = ()
    tbt_targets: tuple[TargetCount, ...] = ()


def added(one: ModelAsked, other: ModelAsked) -> ModelAsked:
    """Sums what two gateways count of a model; targets are left out."""
    return ModelAsked(
        model=one.model,
        requests_total=one.requests_total + other.requests_total,
        prompt_tokens_total=one.prompt_tokens_total + other.prompt_tokens_total,
        output_tokens_total=one.output_tokens_total + other.output_tokens_total,
        waiting=one.waiting + other.waiting,
        held=one.held + other.held,
        oldest_wait_s=max(one.oldest_wait_s, other.oldest_wait_s),
        shed_total=one.shed_total + other.shed_total,
        no_capacity_total=one.no_capacity_total + other.no_capacity_total,
        finished_total=one.finished_total + other.finished_total,
        ttft_met_total=one.ttft_met_total + other.ttft_met_total,
        tbt_met_total=one.tbt_met_total + other.tbt_met_total,
        in_time_total=one.in_time_total + other.in_time_total,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """Sent with every request for a view. `gateway_id` is new for every start of a gateway."""

    gateway_id: str
    models: tuple[ModelAsked, ...]
