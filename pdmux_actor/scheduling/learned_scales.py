"""Compares what launches took with what a latency model says: learned factors, and totals for who plans with it."""

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from statistics import median_low

import msgspec

from pdmux_actor.messages import StepTotals

_SMOOTHING = 0.2  # weight of the newest observation
_FIRST = 5  # observations whose median counts
_LONGEST_STALL = 1.5  # times what was expected: as much longer does one launch say at most
_MIN_SCALE, _MAX_SCALE = 0.05, 50.0


class LearnedScales:
    """Exponential means of measured / modelled, in which one launch that stalled does not count for much: what is
    expected of a share decides whether it is used again, so a wrong factor might never be corrected.

    One factor for all sizes would not do: a latency model that is right for long launches is off for short ones, where
    fixed costs weigh. Sizes are told apart by powers of two; between two that were seen, the factor is interpolated.
    """

    def __init__(self) -> None:
        self._scales: dict[tuple[str, str], ScalesByShare] = {}  # by model and phase

    def knows(self, model: str, phase: str) -> bool:
        return (model, phase) in self._scales

    def is_settled(self, model: str, phase: str, sms: int, size: int) -> bool:
        """Returns whether enough launches of about this size have been seen there to tell one from the others."""
        by_share = self._scales.get((model, phase))
        return by_share is not None and by_share.is_settled(sms, size.bit_length())

    def known_shares(self, model: str, phase: str, size: int) -> Set[int]:
        """Shares on which launches of about this size have been seen."""
        by_share = self._scales.get((model, phase))
        return frozenset() if by_share is None else by_share.seen_with(size.bit_length())

    def observe(self, model: str, phase: str, sms: int, size: int, ratio: float) -> None:
        target = min(max(ratio, _MIN_SCALE), _MAX_SCALE)
        by_share = self._scales.get((model, phase))
        if by_share is None:
            by_share = self._scales[model, phase] = ScalesByShare()
        by_share.observe(sms, size.bit_length(), target)

    def scale(self, model: str, phases: Sequence[str], sms: int, size: int) -> float:
        """Returns the factor of the first of `phases` that has been seen, on the nearest share; 1 when none has."""
        by_share = self.of_phase(model, phases)
        return 1.0 if by_share is None else by_share.factor(sms, size.bit_length())

    def of_phase(self, model: str, phases: Sequence[str]) -> "ScalesByShare | None":
        """Returns the factors of the first of `phases` that has been seen: good until the model is observed again."""
        for phase in phases:
            by_share = self._scales.get((model, phase))
            if by_share is not None:
                return by_share
        return None

    def forget(self, model: str) -> None:
        for key in [key for key in self._scales if key[0] == model]:
            del self._scales[key]


class ScalesByShare:
    """Holds the factors of one model and phase. Factors change with every launch, the places where there are any hardly
    ever: which of them answer for a share and a bucket is found once.
    """

    def __init__(self) -> None:
        self._factors: dict[int, dict[int, float]] = {}  # by SMs, then by size bucket
        self._first: dict[tuple[int, int], list[float]] = {}  # by SMs and bucket, until there are enough
        self._sources: defaultdict[int, dict[int, _Source]] = defaultdict(dict)  # by bucket, then by SMs
        self._shares: dict[int, Set[int]] = {}  # by bucket

    def observe(self, sms: int, bucket: int, target: float) -> None:
        buckets = self._factors.setdefault(sms, {})
        if bucket not in buckets:
            self._sources.clear()
            self._shares.clear()
            self._first[sms, bucket] = []
        first = self._first.get((sms, bucket))
        if first is None:
            old = buckets[bucket]
            buckets[bucket] = old + _SMOOTHING * (min(target, _LONGEST_STALL * old) - old)
            return
        # They replace the prior: a model fitted for other hardware may be off by a factor. The first is often slow.
        first.append(target)
        buckets[bucket] = median_low(first)
        if len(first) == _FIRST:
            del self._first[sms, bucket]

    def is_settled(self, sms: int, bucket: int) -> bool:
        return bucket in self._factors.get(sms, ()) and (sms, bucket) not in self._first

    def seen_with(self, bucket: int) -> Set[int]:
        shares = self._shares.get(bucket)
        if shares is None:
            shares = self._shares[bucket] = frozenset(s for s, buckets in self._factors.items() if bucket in buckets)
        return shares

    def factor(self, sms: int, bucket: int) -> float:
        """`bucket` is the bit length of a launch's size."""
        source = self._sources[bucket].get(sms) or self._source(sms, bucket)
        return source.factor()

    def _source(self, sms: int, bucket: int) -> "_Source":
        nearest = min(self._factors, key=lambda seen: (abs(seen - sms), seen))
        source = self._sources[bucket][sms] = _Source(self._factors[nearest], bucket)
        return source


class _Source:
    """The factor of a bucket among those that were seen on one share, from its neighbours if need be.

    >>> seen = {4: 1.0, 8: 3.0}
    >>> [_Source(seen, bucket).factor() for bucket in (2, 4, 5, 9)]
    [1.0, 1.0, 1.5, 3.0]
    """

    __slots__ = ("_above", "_below", "_bucket", "_buckets")

    def __init__(self, buckets: dict[int, float], bucket: int) -> None:
        below = max((seen for seen in buckets if seen <= bucket), default=None)
        above = min((seen for seen in buckets if seen >= bucket), default=None)
        nearest = above if below is None else below
        assert nearest is not None, "an empty table of scales"
        self._buckets, self._bucket = buckets, bucket
        self._below = nearest
        self._above = nearest if above is None or nearest == bucket else above

    def factor(self) -> float:
        below, above = self._below, self._above
        if below == above:
            return self._buckets[below]
        low, high = self._buckets[below], self._buckets[above]
        return low + (high - low) * (self._bucket - below) / (above - below)


_WARM_UP = 3  # launches of a model and phase: kernels are compiled and memory is touched for the first time
_LEAST, _MOST = 0.05, 50.0  # times the model: beyond, it is not the step that took so long
_PARTS = 4


class _Sums(msgspec.Struct, gc=False):
    launches: int = 0
    modelled_s: float = 0.0
    measured_s: float = 0.0


class MeasuredSteps:
    """Counts what launches took, at some additions each. Counts only grow until the model leaves."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[tuple[str, int], _Sums]] = {}  # by model, then by phase and SMs
        self._seen: dict[tuple[str, str], int] = {}  # by model and phase

    def note(self, model: str, phase: str, sms: int, modelled_s: float, measured_s: float) -> None:
        seen = self._seen.get((model, phase), 0)
        if seen < _WARM_UP:
            self._seen[model, phase] = seen + 1
            return
        of_model = self._sums.setdefault(model, {})
        sums = of_model.get((phase, sms))
        if sums is None:
            sums = of_model[phase, sms] = _Sums()
        sums.launches += 1
        sums.modelled_s += modelled_s
        sums.measured_s += min(max(measured_s, _LEAST * modelled_s), _MOST * modelled_s)

    def of(self, model: str, num_sms: int) -> tuple[StepTotals, ...]:
        """Returns the totals of each phase on each quarter of the SMs."""
        found: dict[tuple[str, int], _Sums] = {}
        for (phase, sms), sums in self._sums.get(model, {}).items():
            key = phase, math.ceil(_PARTS * sms / num_sms)
            total = found.get(key)
            if total is None:
                total = found[key] = _Sums()
            total.launches += sums.launches
            total.modelled_s += sums.modelled_s
            total.measured_s += sums.measured_s
        return tuple(
            [
                StepTotals(
                    model=model,
                    phase=phase,
                    quarters=quarters,
                    launches=total.launches,
                    modelled_s=total.modelled_s,
                    measured_s=total.measured_s,
                )
                for (phase, quarters), total in sorted(found.items(), key=lambda item: item[0])
            ]
        )

    def forget(self, model: str) -> None:
        self._sums.pop(model, None)
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != model}
