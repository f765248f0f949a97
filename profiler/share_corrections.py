"""Turns what few launches on a partition say of a prediction for it into a factor."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from profiler.latency import ChunkShape
from profiler.measurement import Measurement, measured_shares, solo
from profiler.trend import PHASE_FEATURES

Predict = Callable[[Sequence[ChunkShape], Sequence[int], int], float]
"""Predicts the seconds of chunks, contexts of decoding sequences, and SMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCorrections:
    """Factors on predictions by SMs, rising, for each phase; 1 where the partition itself was fitted, none if all were.
    One launch says how fast a partition is, not how its time grows with the batch: that is the prediction's.
    """

    prefill: Mapping[int, float]
    decode: Mapping[int, float]

    @classmethod
    def of(cls, rows: Sequence[Measurement], fitted: Sequence[int], predict: Predict) -> "ShareCorrections":
        """`rows`: launches of a model. `fitted`: SMs of the partitions that its predictions follow."""

        def factors(phase: str) -> dict[int, float]:
            found = dict.fromkeys(fitted, 1.0)
            for sms in measured_shares(rows):
                if sms not in found and (launches := solo(rows, sms, phase)):
                    ratios = [m.seconds / predict(m.launch.chunks, m.launch.contexts, sms) for m in launches]
                    found[sms] = geometric_mean(ratios)
            return dict(sorted(found.items())) if len(found) > len(fitted) else {}

        return cls(prefill=factors("prefill"), decode=factors("decode"))

    def factor(self, sms: int, *, prefills: bool, decodes: bool) -> float:
        """Returns the factor for a launch; a fused step has the mean of both phases'."""
        if not prefills:
            return interpolated(self.decode, sms)
        prefill = interpolated(self.prefill, sms)
        return (prefill + interpolated(self.decode, sms)) / 2 if decodes else prefill


def has_enough(launches: Sequence[Measurement], phase: str) -> bool:
    """Returns whether there are as many different launches as a fit of the phase has unknowns."""
    features = PHASE_FEATURES[phase]
    return len({tuple(m.launch.features.value(name) for name in features) for m in launches}) >= len(features)


def interpolated(by_sms: Mapping[int, float], sms: int) -> float:
    """Linearly in 1 / SMs; beyond the last one its value, and 1 of nothing.

    >>> interpolated({16: 1.0, 64: 2.0}, 32), interpolated({16: 1.0, 64: 2.0}, 132), interpolated({}, 16)
    (1.6666666666666667, 2.0, 1.0)
    """
    if not by_sms:
        return 1.0
    return sum(weight * by_sms[share] for share, weight in shares_around(tuple(by_sms), sms))


def shares_around(shares: tuple[int, ...], sms: int) -> tuple[tuple[int, float], ...]:
    """The partitions of `shares` around `sms`, with weights; one of weight 1 where it is one of them or beyond all.

    >>> shares_around((16, 32, 64), 32), shares_around((16, 32), 8), shares_around((16, 64), 32)
    (((32, 1.0),), ((16, 1.0),), ((16, 0.3333333333333333), (64, 0.6666666666666667)))
    """
    upper = bisect_left(shares, sms)
    if upper == len(shares):
        return ((shares[-1], 1.0),)
    if upper == 0 or shares[upper] == sms:
        return ((shares[upper], 1.0),)
    low, high = shares[upper - 1], shares[upper]
    weight = (1 / sms - 1 / high) / (1 / low - 1 / high)
    return ((low, weight), (high, 1 - weight))
