"""What is asked of each model."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from traces.record import TraceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """`prompt_tokens` and `output_tokens` are means over requests."""

    model: str
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float

    @property
    def tokens_per_request(self) -> float:
        return self.prompt_tokens + self.output_tokens


def demand_of_trace(
    records: Iterable[TraceRecord], *, duration_s: float, default_model: str
) -> tuple[ModelDemand, ...]:
    """Demand per model, by name, of a trace that covers `duration_s`; requests without a model count as the default's.

    >>> trace = [TraceRecord(arrival_s=t, input_tokens=100, output_tokens=20 * t) for t in (1, 2, 3)]
    >>> demand_of_trace(trace, duration_s=6, default_model="m")
    (ModelDemand(model='m', rate_per_s=0.5, prompt_tokens=100.0, output_tokens=40.0),)
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
        )
        for model, requests in sorted(by_model.items())
    )
