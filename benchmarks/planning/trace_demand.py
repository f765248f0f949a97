"""What a trace asks of each model."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from placement.demand import ModelDemand
from traces.record import TraceRecord

_FEWEST_GAPS = 10  # of which a variation says anything


def demand_of_trace(
    records: Iterable[TraceRecord], *, duration_s: float, default_model: str
) -> tuple[ModelDemand, ...]:
    """Demand per model, by name, of a trace that covers `duration_s`; requests without a model are the default's."""
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
