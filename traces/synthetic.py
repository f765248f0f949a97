"""Generated traces: arrivals, popularity and lengths from a seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from traces.arrivals import gamma_arrivals
from traces.errors import BadParameter
from traces.lengths import LengthProfile
from traces.record import TraceRecord
from traces.trace import Trace


def power_law_popularity(models: Sequence[str], alpha: float) -> dict[str, float]:
    """Shares of requests that fall with rank, hottest first: share_i ~ i^-alpha (MuxServe §4.2, ranks from 1).

    >>> {m: round(s, 3) for m, s in power_law_popularity(["a", "b", "c"], 1.0).items()}
    {'a': 0.545, 'b': 0.273, 'c': 0.182}
    """
    if not models:
        raise BadParameter(name="models", value=list(models), remedy="give at least one model")
    if not 0 <= alpha < float("inf"):
        raise BadParameter(name="alpha", value=alpha, remedy="give a finite number of at least 0 (0 is uniform)")
    weights = [(rank + 1) ** -alpha for rank in range(len(models))]
    total = sum(weights)
    return {model: weight / total for model, weight in zip(models, weights, strict=True)}


def synthesize(
    *,
    popularity: Mapping[str, float],
    rate_per_s: float,
    count: int,
    lengths: LengthProfile | Mapping[str, LengthProfile],
    seed: int,
    cv: float = 1.0,
    name: str = "synthetic",
) -> Trace:
    """The first `count` requests of independent arrival processes, one per model at its share of `rate_per_s`.

    `cv` is the coefficient of variation of one model's gaps: 1 is Poisson. A model's requests depend on the seed, its
    rank in `popularity` and its own parameters only, not on the other models.

    Raises:
        BadParameter: a share, the rate, the count or `cv` is out of range, or a model has no lengths.
    """
    if count < 1:
        raise BadParameter(name="count", value=count, remedy="give at least 1")
    total = sum(popularity.values())
    if not popularity or total <= 0 or any(share < 0 for share in popularity.values()):
        raise BadParameter(
            name="popularity", value=dict(popularity), remedy="give each model a share >= 0, not all of them 0"
        )
    records: list[TraceRecord] = []
    for rank, (model, share) in enumerate(popularity.items()):
        if share > 0:
            profile = _profile_of(model, lengths)
            records += _requests_of(model, rank, rate_per_s * share / total, count, profile, cv, seed)
    records.sort(key=lambda record: record.arrival_s)
    return Trace(name=name, records=tuple(records[:count]))


def _profile_of(model: str, lengths: LengthProfile | Mapping[str, LengthProfile]) -> LengthProfile:
    if isinstance(lengths, LengthProfile):
        return lengths
    if model not in lengths:
        raise BadParameter(name="lengths", value=sorted(lengths), remedy=f"add a length profile for {model!r}")
    return lengths[model]


def _requests_of(
    model: str, rank: int, rate_per_s: float, count: int, profile: LengthProfile, cv: float, seed: int
) -> list[TraceRecord]:
    arrivals_seed, lengths_seed = (int(s) for s in np.random.SeedSequence([seed, rank]).generate_state(2, np.uint64))
    rng = np.random.default_rng(lengths_seed)
    inputs, outputs = profile.input.sample(count, rng), profile.output.sample(count, rng)
    arrivals_s = gamma_arrivals(rate_per_s, count, cv=cv, seed=arrivals_seed)
    return [
        TraceRecord(arrival_s=arrival_s, input_tokens=int(i), output_tokens=int(o), model=model)
        for arrival_s, i, o in zip(arrivals_s, inputs, outputs, strict=True)
    ]
