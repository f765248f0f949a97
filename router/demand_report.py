"""What clients asked a gateway for: the control loop places models by it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked:
    """Totals since the gateway started, of every request for an offered model: also of those held, shed or failed.

    `waiting` requests have no first token yet; of them `held` wait because no unit has the model ready: they wake a
    model that is scaled to zero. `oldest_wait_s`: how long the first that waits at the gateway has done so. `shed` ones
    were turned away by overload, `no_capacity` ones because no unit came in time. `finished` ones were answered to the
    end; the last two are those of them within their targets.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """Sent with every request for a view. `gateway_id` is new for every start of a gateway."""

    gateway_id: str
    models: tuple[ModelAsked, ...]


@dataclass(slots=True)
class _Totals:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class DemandCounter:
    """`waiting` tells how many requests of a model wait for their first token."""

    def __init__(self, gateway_id: str, waiting: Callable[[str], int]) -> None:
        self._gateway_id = gateway_id
        self._waiting = waiting
        self._totals: dict[str, _Totals] = {}

    def asked(self, model: str) -> None:
        self._totals.setdefault(model, _Totals()).requests += 1

    def prompt(self, model: str, tokens: int) -> None:
        self._totals.setdefault(model, _Totals()).prompt_tokens += tokens

    def output(self, model: str, tokens: int) -> None:
        self._totals.setdefault(model, _Totals()).output_tokens += tokens

    def forget_all_but(self, models: Iterable[str]) -> None:
        """Of models that the fleet no longer offers."""
        offered = set(models)
        self._totals = {m: t for m, t in self._totals.items() if m in offered}

    def report(self) -> DemandReport:
        return DemandReport(
            gateway_id=self._gateway_id,
            models=tuple(
                ModelAsked(
                    model=model,
                    requests_total=totals.requests,
                    prompt_tokens_total=totals.prompt_tokens,
                    output_tokens_total=totals.output_tokens,
                    waiting=self._waiting(model),
                )
                for model, totals in sorted(self._totals.items())
            ),
        )
