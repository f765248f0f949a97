"""Latency predictions that learn from what launches really took."""

from collections.abc import Sequence

from pdmux_actor.scheduling.flight import Flight
from pdmux_actor.scheduling.launch import Completion, ComputeLaunch, DecodeStep, MixedStep, PrefillSlice
from profiler.contention import ContentionGuard, GuardCell
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

_SMOOTHING = 0.2  # weight of the newest observation
_MIN_SCALE, _MAX_SCALE = 0.05, 50.0
_ALONE, _IN_COMPANY = 0.1, 0.9  # share of its time beside the other lane, for a launch to teach about either case

PREFILL, PREFILL_BESIDE, DECODE, MIXED = "prefill", "prefill beside decode", "decode", "mixed"


class LatencyPredictor:
    """Solo-run latencies of a model, times a learned factor per (model, phase); for decode beside prefill, the worst.

    The factor is an exponential mean of measured / modelled, so a latency model fitted on other hardware does. Decode
    beside prefill is the solo-run prediction times the contention guard's maximum (MuxWise §3.3.2); prefill beside
    decode has a mean factor of its own, since it needs no worst case (§3.4.1).
    """

    def __init__(self, latency: LatencyModel, guard: ContentionGuard | None = None) -> None:
        self.guard = guard or ContentionGuard()
        self._latency = latency
        self._scales: dict[tuple[str, str], float] = {}

    def prefill_s(
        self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int, *, beside_decode: bool
    ) -> float:
        phase = PREFILL_BESIDE if beside_decode else PREFILL
        return self._latency.prefill_s(spec, chunks, sms) * self._scale(model, phase)

    def decode_s(
        self,
        model: str,
        spec: ModelSpec,
        contexts: Sequence[int],
        sms: int,
        *,
        beside: Sequence[ChunkShape] = (),
    ) -> float:
        """Expected when alone, the worst case `beside` a prefill of these chunks."""
        solo_s = self._latency.decode_s(spec, contexts, sms) * self._scale(model, DECODE)
        return solo_s * self.guard.slowdown(GuardCell.of(sms, beside, contexts)) if beside else solo_s

    def mixed_s(
        self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], contexts: Sequence[int], sms: int
    ) -> float:
        return self._latency.mixed_s(spec, chunks, contexts, sms) * self._scale(model, MIXED)

    def modelled_s(self, spec: ModelSpec, launch: ComputeLaunch, sms: int) -> float:
        """What the latency model alone says of a launch."""
        match launch:
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last):
                whole_s = self._latency.prefill_s(spec, [c.shape for c in chunks], sms)
                return whole_s * (last - first) / spec.num_layers
            case DecodeStep(sequences=sequences, steps=steps):
                return steps * self._latency.decode_s(spec, [len(s.token_ids) for s in sequences], sms)
            case MixedStep(chunks=chunks, sequences=sequences):
                contexts = [len(s.token_ids) for s in sequences]
                return self._latency.mixed_s(spec, [c.shape for c in chunks], contexts, sms)

    def expected_s(self, flight: Flight, *, beside_other_lane: bool) -> float:
        """What a launch that takes off now is expected to take: for a decode beside a prefill, its worst case."""
        model = flight.launch.model
        match flight.launch:
            case MixedStep():
                return flight.modelled_s * self._scale(model, MIXED)
            case PrefillSlice():
                return flight.modelled_s * self._scale(model, PREFILL_BESIDE if beside_other_lane else PREFILL)
            case DecodeStep(sequences=sequences):
                solo_s = flight.modelled_s * self._scale(model, DECODE)
                if not flight.beside:
                    return solo_s
                contexts = [len(s.token_ids) for s in sequences]
                return solo_s * self.guard.slowdown(GuardCell.of(flight.sms, flight.beside, contexts))

    def learn(self, flight: Flight, contexts: Sequence[int], done: Completion) -> None:
        """`contexts` are those of the decoding sequences when the launch took off."""
        measured_s = done.finished_s - done.started_s
        if flight.modelled_s <= 0 or measured_s <= 0:
            return
        company = min(1.0, flight.company_s / measured_s)
        model, ratio = flight.launch.model, measured_s / flight.modelled_s
        match flight.launch:
            case MixedStep():
                self._observe(model, MIXED, ratio)
            case PrefillSlice() if company <= _ALONE:
                self._observe(model, PREFILL, ratio)
            case PrefillSlice() if company >= _IN_COMPANY:
                self._observe(model, PREFILL_BESIDE, ratio)
            case DecodeStep() if company <= _ALONE:
                self._observe(model, DECODE, ratio)
            case DecodeStep() if company >= _IN_COMPANY and (model, DECODE) in self._scales:
                cell = GuardCell.of(flight.sms, flight.beside, contexts)
                self.guard.observe(cell, ratio / self._scale(model, DECODE))
            case _:
                pass  # partly alone, partly not: teaches nothing

    def forget(self, model: str) -> None:
        for key in [key for key in self._scales if key[0] == model]:
            del self._scales[key]

    def _observe(self, model: str, phase: str, ratio: float) -> None:
        target = min(max(ratio, _MIN_SCALE), _MAX_SCALE)
        # The first observation replaces the prior: a model fitted for other hardware may be off by a factor.
        old = self._scales.get((model, phase), target)
        self._scales[model, phase] = old + _SMOOTHING * (target - old)

    def _scale(self, model: str, phase: str) -> float:
        """What was learned, else what the nearest other phase learned, else 1."""
        fallbacks = {PREFILL_BESIDE: (PREFILL, MIXED), PREFILL: (PREFILL_BESIDE, MIXED), MIXED: (PREFILL, DECODE)}
        for known in (phase, *fallbacks.get(phase, (MIXED, PREFILL))):
            if (model, known) in self._scales:
                return self._scales[model, known]
        return 1.0
