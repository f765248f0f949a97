"""Latencies that were measured: by model, partition and phase."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from types import MappingProxyType
from typing import Protocol

from profiler.batch_features import Amount, BatchFeatures, batch_features
from profiler.latency import ChunkShape, LatencyModel, decode_by_share, overlapped_s
from profiler.measurement import MeasuredBatches, Measurement, measured_shares, solo
from profiler.share_corrections import ShareCorrections, has_enough, shares_around
from profiler.specs import ModelSpec
from profiler.trend import PHASE_FEATURES, Trend

_MIN_FUSED_STEPS = 8


class StepTimes(Protocol):
    """Predicts one phase of one model on one partition, for a batch that is not empty."""

    def seconds(self, batch: BatchFeatures[Amount]) -> Amount: ...

    def is_outside(self, batch: BatchFeatures[float]) -> bool:
        """Returns whether the answer is a guess: nothing like this batch was measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    prefill: StepTimes
    decode: StepTimes
    mixed: StepTimes

    def of(self, batch: BatchFeatures[float]) -> StepTimes:
        if batch.prefill_tokens == 0:
            return self.decode
        return self.mixed if batch.decode_sequences else self.prefill


@dataclass(frozen=True, slots=True)
class SumOfTimes:
    """`terms` are a factor (layers) and what is repeated."""

    terms: tuple[tuple[float, StepTimes], ...]

    def seconds(self, batch: BatchFeatures[Amount]) -> Amount:
        first, *others = self.terms
        total: Amount = first[0] * first[1].seconds(batch)
        for factor, times in others:
            total = total + factor * times.seconds(batch)
        return total

    def is_outside(self, batch: BatchFeatures[float]) -> bool:
        return any(times.is_outside(batch) for _, times in self.terms)


def fit_partitions(
    rows: Sequence[Measurement], fit_phase: Callable[[str, Sequence[Measurement]], StepTimes]
) -> dict[int, PhaseTimes]:
    """`fit_phase` by phase and its solo launches. A partition with launches of one phase only has the other from the
    partitions around it, and is left out where there are none. A phase with too few different launches to fit anything
    to has the fits around it, or the nearest, times what they say of it. Where both phases have too few the partition
    is left out, too: ShareCorrections. All that as long as another partition has enough.
    """
    prefills, decodes = (
        {sms: fit_phase(phase, launches) for sms, launches in _launches(rows, phase).items()}
        for phase in ("prefill", "decode")
    )
    fitted = {}
    for sms in sorted({*prefills, *decodes}):
        prefill, decode = _on_share(prefills, sms, rows, "prefill"), _on_share(decodes, sms, rows, "decode")
        fused = solo(rows, sms, "mixed")
        if prefill is not None and decode is not None:
            # With too few fused steps to learn from, they are taken for both parts one after the other.
            both = SumOfTimes(((1.0, prefill), (1.0, decode)))
            mixed = fit_phase("mixed", fused) if len(fused) >= _MIN_FUSED_STEPS else both
            fitted[sms] = PhaseTimes(prefill=prefill, decode=decode, mixed=mixed)
    return fitted


def _launches(rows: Sequence[Measurement], phase: str) -> dict[int, list[Measurement]]:
    by_sms = {sms: launches for sms in measured_shares(rows) if (launches := solo(rows, sms, phase))}
    enough = {sms: launches for sms, launches in by_sms.items() if has_enough(launches, phase)}
    return enough or by_sms


def _on_share(measured: Mapping[int, StepTimes], sms: int, rows: Sequence[Measurement], phase: str) -> StepTimes | None:
    """`measured` is by SMs, rising. None: no launch was measured, nor does it lie between two that were fitted."""
    if sms in measured:
        return measured[sms]
    few = solo(rows, sms, phase)
    if not measured or (not few and not min(measured) < sms < max(measured)):
        return None
    near = SumOfTimes(tuple((weight, measured[share]) for share, weight in shares_around(tuple(measured), sms)))
    if not few:
        return near
    return SumOfTimes(((geometric_mean([m.seconds / near.seconds(m.launch.features) for m in few]), near),))


class MeasuredLatency:
    """`profiler.latency.LatencyModel` over measurements.

    Between two measured partitions it interpolates in 1 / SMs, which is exact for work that scales with SMs and for
    work that does not. Beyond them it scales the nearest by what `beyond` says of the two partitions, and by what the
    few launches that were measured there say of that; `beyond` answers for models that were not measured.
    """

    def __init__(
        self,
        measured: Mapping[ModelSpec, Mapping[int, PhaseTimes]],
        *,
        beyond: LatencyModel,
        rows: Mapping[ModelSpec, Sequence[Measurement]] = MappingProxyType({}),
    ) -> None:
        """`measured` is by model, then by SMs. `rows`: all launches, also of partitions that have too few."""
        self._measured = {spec: dict(sorted(by_sms.items())) for spec, by_sms in measured.items() if by_sms}
        self._beyond = beyond
        self._corrections = {
            spec: ShareCorrections.of(rows.get(spec, ()), tuple(by_sms), partial(self._uncorrected_s, spec))
            for spec, by_sms in self._measured.items()
        }

    @property
    def specs(self) -> tuple[ModelSpec, ...]:
        return tuple(self._measured)

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.mixed_s(spec, (), context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        by_sms = self._measured.get(spec)
        if by_sms is None:
            return self._beyond.mixed_s(spec, chunks, context_tokens, sms)
        factor = self._corrections[spec].factor(sms, prefills=bool(chunks), decodes=bool(context_tokens))
        return factor * self._uncorrected_s(spec, chunks, context_tokens, sms)

    def _uncorrected_s(
        self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int
    ) -> float:
        batch = batch_features(chunks, context_tokens)
        beyond_s = partial(self._beyond.mixed_s, spec, chunks, context_tokens)
        return _Shares(self._measured[spec], batch, beyond_s).seconds(sms)

    def overlapped_s(
        self,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        context_tokens: Sequence[int],
        sms: int,
        *,
        nano_batches: int,
    ) -> float:
        """Multiplies what was measured of the fused step by what overlap makes of it, as `beyond` has it."""
        fused_s = self._beyond.mixed_s(spec, chunks, context_tokens, sms)
        if fused_s <= 0:
            return 0.0
        together_s = overlapped_s(self._beyond, spec, chunks, context_tokens, sms, nano_batches=nano_batches)
        return self.mixed_s(spec, chunks, context_tokens, sms) * together_s / fused_s

    def decode_by_share(self, spec: ModelSpec, context_tokens: Sequence[int]) -> Callable[[int], float]:
        beyond_s = decode_by_share(self._beyond)(spec, context_tokens)
        by_sms = self._measured.get(spec)
        if by_sms is None:
            return beyond_s
        uncorrected = _Shares(by_sms, batch_features((), context_tokens), beyond_s)
        corrections = self._corrections[spec]
        return lambda sms: corrections.factor(sms, prefills=False, decodes=True) * uncorrected.seconds(sms)

    def is_outside(
        self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int
    ) -> bool:
        """Returns whether the latency of this batch would be extrapolated: in the batch's shape, the partition or the
        model.
        """
        by_sms = self._measured.get(spec)
        if by_sms is None:
            return True
        batch = batch_features(chunks, context_tokens)
        if batch.tokens == 0:
            return False
        shares = [share for share, _ in shares_around(tuple(by_sms), sms)]
        beyond = len(shares) == 1 and shares[0] != sms
        return beyond or any(by_sms[share].of(batch).is_outside(batch) for share in shares)


class _Shares:
    """One batch on the shares of one model. `beyond_s` is what another model says of it, by share."""

    def __init__(
        self, by_sms: Mapping[int, PhaseTimes], batch: BatchFeatures[float], beyond_s: Callable[[int], float]
    ) -> None:
        self._by_sms = by_sms
        self._batch = batch
        self._beyond_s = beyond_s
        self._measured = tuple(by_sms)
        self._measured_s: dict[int, float] = {}

    def seconds(self, sms: int) -> float:
        if self._batch.tokens == 0:
            return 0.0
        seconds = 0.0
        for share, weight in shares_around(self._measured, sms):
            share_s = self._measured_s.get(share)
            if share_s is None:
                share_s = self._measured_s[share] = self._by_sms[share].of(self._batch).seconds(self._batch)
            if share != sms and weight == 1.0:
                share_s *= self._beyond_s(sms) / self._beyond_s(share)
            seconds += weight * share_s
        return seconds


class FittedLatency(MeasuredLatency):
    """Non-negative least squares per model, partition and phase. A few hundred bytes, plausible at any size."""

    @classmethod
    def fit(cls, measurements: Mapping[ModelSpec, Sequence[Measurement]], *, beyond: LatencyModel) -> "FittedLatency":
        """Fits the launches that ran alone; partitions: see fit_partitions."""
        fitted = {spec: fit_partitions(rows, _fit_phase) for spec, rows in measurements.items()}
        return cls(fitted, beyond=beyond, rows=measurements)


def _fit_phase(phase: str, rows: Sequence[Measurement]) -> Trend:
    measured = MeasuredBatches.of(rows)
    return Trend.fit(PHASE_FEATURES[phase], measured.batches, measured.seconds)
