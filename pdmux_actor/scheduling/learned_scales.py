"""Factors between what a latency model says and what is measured, by phase, share and size of a launch."""

from collections.abc import Sequence

_SMOOTHING = 0.2  # weight of the newest observation
_MIN_SCALE, _MAX_SCALE = 0.05, 50.0


class LearnedScales:
    """Exponential means of measured / modelled.

    One factor for all sizes would not do: a latency model that is right for long launches is off for short ones, where
    fixed costs weigh. Sizes are told apart by powers of two; between two that were seen, the factor is interpolated.
    """

    def __init__(self) -> None:
        self._scales: dict[tuple[str, str], dict[int, dict[int, float]]] = {}  # (model, phase): sms: size bucket

    def knows(self, model: str, phase: str) -> bool:
        return (model, phase) in self._scales

    def has(self, model: str, phase: str, sms: int, size: int) -> bool:
        return size.bit_length() in self._scales.get((model, phase), {}).get(sms, {})

    def observe(self, model: str, phase: str, sms: int, size: int, ratio: float) -> None:
        target = min(max(ratio, _MIN_SCALE), _MAX_SCALE)
        buckets = self._scales.setdefault((model, phase), {}).setdefault(sms, {})
        # The first observation replaces the prior: a model fitted for other hardware may be off by a factor.
        old = buckets.get(size.bit_length(), target)
        buckets[size.bit_length()] = old + _SMOOTHING * (target - old)

    def scale(self, model: str, phases: Sequence[str], sms: int, size: int) -> float:
        """Of the first of `phases` that has been seen, on the nearest share; 1 when none has."""
        for phase in phases:
            by_share = self._scales.get((model, phase))
            if by_share:
                buckets = by_share.get(sms)
                if buckets is None:
                    buckets = by_share[min(by_share, key=lambda seen: (abs(seen - sms), seen))]
                return _interpolated(buckets, size.bit_length())
        return 1.0

    def forget(self, model: str) -> None:
        for key in [key for key in self._scales if key[0] == model]:
            del self._scales[key]


def _interpolated(buckets: dict[int, float], bucket: int) -> float:
    """The factor of a bucket, from its neighbours if need be.

    >>> _interpolated({4: 1.0, 8: 3.0}, 5), _interpolated({4: 1.0, 8: 3.0}, 9), _interpolated({4: 1.0}, 2)
    (1.5, 3.0, 1.0)
    """
    known = buckets.get(bucket)
    if known is not None:
        return known
    below = max((seen for seen in buckets if seen < bucket), default=None)
    above = min((seen for seen in buckets if seen > bucket), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        assert nearest is not None, "an empty table of scales"
        return buckets[nearest]
    return buckets[below] + (buckets[above] - buckets[below]) * (bucket - below) / (above - below)
