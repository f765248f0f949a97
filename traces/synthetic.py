"""Generated traces: arrivals, popularity and lengths from a seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from traces.errors import BadParameter
from traces.record import TraceRecord
from traces.trace import Trace

_Z99 = 2.3263478740408408  # the standard normal's 99th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """A log-normal with the given median and 99th percentile, clamped to [min, max]."""

    min_tokens: int
    p50_tokens: int
    p99_tokens: int
    max_tokens: int

    @property
    def sigma(self) -> float:
        """
        >>> round(LengthDistribution(min_tokens=1, p50_tokens=100, p99_tokens=1000, max_tokens=4000).sigma, 4)
        0.9898
        """
        return math.log(self.p99_tokens / self.p50_tokens) / _Z99

    def sample(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        drawn = rng.lognormal(math.log(self.p50_tokens), self.sigma, size=count)
        return np.clip(np.rint(drawn), self.min_tokens, self.max_tokens).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthProfile:
    """Input and output lengths, drawn independently of each other."""

    name: str
    input: LengthDistribution
    output: LengthDistribution
    source: str


def _profile(
    name: str, source: str, inputs: tuple[int, int, int, int], outputs: tuple[int, int, int, int]
) -> LengthProfile:
    def distribution(figures: tuple[int, int, int, int]) -> LengthDistribution:
        low, p50, p99, high = figures
        return LengthDistribution(min_tokens=low, p50_tokens=p50, p99_tokens=p99, max_tokens=high)

    return LengthProfile(name=name, input=distribution(inputs), output=distribution(outputs), source=source)


# min, p50, p99, max of the whole public files. A log-normal meets the two quantiles exactly; the mean of what it draws
# is then within 30 % of the file's own (Azure conversation outputs are the worst: 160 against 211).
PROFILES = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _profile(
                "azure_conv",
                "Azure LLM inference trace 2023, conversations (Patel et al., Splitwise, ISCA'24), 19,366 requests",
                (2, 1_020, 4_142, 14_050),
                (7, 129, 601, 1_000),
            ),
            _profile(
                "azure_code",
                "Azure LLM inference trace 2023, code (Patel et al., Splitwise, ISCA'24), 8,819 requests",
                (3, 1_469, 7_436, 7_437),
                (6, 13, 251, 1_899),
            ),
            _profile(
                "mooncake_conversation",
                "Mooncake conversation trace (Qin et al., FAST'25), 12,031 requests",
                (891, 6_909, 85_400, 126_195),
                (1, 350, 1_118, 2_000),
            ),
            _profile(
                "sharegpt",
                "ShareGPT with history up to 8k tokens (as filtered by Sarathi-Serve, OSDI'24), 30,731 requests",
                (1, 1_730, 7_434, 8_141),
                (2, 415, 998, 1_024),
            ),
            _profile(
                "lmsys_chat",
                "LMSYS-Chat-1M lengths (as published with APEX+), 1,024 requests",
                (2, 17, 586, 1_037),
                (1, 117, 533, 761),
            ),
        )
    }
)


def gamma_arrivals(rate_per_s: float, count: int, *, cv: float, seed: int) -> tuple[float, ...]:
    """A renewal process with Gamma gaps of coefficient of variation `cv`: 1 is Poisson, more is burstier, 0 is even."""
    if not 0 < rate_per_s < float("inf"):
        raise BadParameter(name="rate_per_s", value=rate_per_s, remedy="give a finite rate above 0")
    if not 0 <= cv < float("inf"):
        raise BadParameter(name="cv", value=cv, remedy="give a finite number of at least 0")
    if count < 0:
        raise BadParameter(name="count", value=count, remedy="give at least 0")
    if cv == 0:
        gaps_s = np.full(count, 1.0 / rate_per_s)
    else:
        shape = 1.0 / cv**2
        gaps_s = np.random.default_rng(seed).gamma(shape, 1.0 / (rate_per_s * shape), size=count)
    return tuple(float(t) for t in np.cumsum(gaps_s))


def poisson_arrivals(rate_per_s: float, count: int, *, seed: int) -> tuple[float, ...]:
    return gamma_arrivals(rate_per_s, count, cv=1.0, seed=seed)


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
