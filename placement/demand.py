"""Defines what is asked of each model."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from placement.target_mix import OWN_TARGETS, TargetMix, mixed
from traces.record import TraceRecord

_FEWEST_GAPS = 10  # of which a variation says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """`prompt_tokens` and `output_tokens` are means over requests. `arrival_cv`: coefficient of variation of the gaps
    between requests; 1 is Poisson, bursts are more. `targets`: which ones requests name instead of the model's own.
    """

    model: str
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    arrival_cv: float = 1.0
    targets: TargetMix = field(default=OWN_TARGETS, repr=False)

    @property
    def tokens_per_request(self) -> float:
        return self.prompt_tokens + self.output_tokens


def together(model: str, demands: Sequence[ModelDemand]) -> ModelDemand:
    """Adds up demands, as that of one model.

    >>> one = ModelDemand(model="a", rate_per_s=1.0, prompt_tokens=100, output_tokens=10)
    >>> other = ModelDemand(model="b", rate_per_s=3.0, prompt_tokens=20, output_tokens=50)
    >>> together("a", [one, other])
    ModelDemand(model='a', rate_per_s=4.0, prompt_tokens=40.0, output_tokens=40.0, arrival_cv=1.0)
    """
    rate_per_s = sum(d.rate_per_s for d in demands)
    weights = [d.rate_per_s / rate_per_s if rate_per_s else 1 / len(demands) for d in demands]
    return ModelDemand(
        model=model,
        rate_per_s=rate_per_s,
        prompt_tokens=sum(w * d.prompt_tokens for w, d in zip(weights, demands, strict=True)),
        output_tokens=sum(w * d.output_tokens for w, d in zip(weights, demands, strict=True)),
        arrival_cv=max(d.arrival_cv for d in demands),
        targets=mixed((w, d.targets) for w, d in zip(weights, demands, strict=True)),
    )


def demand_of_trace(
    records: Iterable[TraceRecord], *, duration_s: float, default_model: str
) -> tuple[ModelDemand, ...]:
    """Demand per model, by name, of a trace that covers `duration_s`; requests without a model count as the default's.

    >>> trace = [TraceRecord(arrival_s=t, input_tokens=100, output_tokens=20 * t) for t in (1, 2, 3)]
    >>> demand_of_trace(trace, duration_s=6, default_model="m")
    (ModelDemand(model='m', rate_per_s=0.5, prompt_tokens=100.0, output_tokens=40.0, arrival_cv=1.0),)
    """
    assert duration_s > 0, "a rate needs a duration"
    by_model: defaultdict[str, list[TraceRecord]] = defaultdict(list)
    for record in records:
        by_model[record.model or default_model].append(record)
    return tuple(
        ModelDemand(
            model=model,
            rate_per_s=len(requests) / duration_s,
            prompt_tokens=sum(r.input_tokens for r in requests) / len(requests),
            output_tokens=sum(r.output_tokens for r in requests) / len(requests),
            arrival_cv=_cv([r.arrival_s for r in requests]),
        )
        for model, requests in sorted(by_model.items())
    )


def _cv(arrivals_s: Sequence[float]) -> float:
    """Poisson's where too few requests tell."""
    ordered = sorted(arrivals_s)
    gaps_s = [after - before for before, after in itertools.pairwise(ordered)]
    mean_s = statistics.fmean(gaps_s) if len(gaps_s) >= _FEWEST_GAPS else 0.0
    return statistics.stdev(gaps_s) / mean_s if mean_s > 0 else 1.0
