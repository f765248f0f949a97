"""Latency predictions that learn from what launches really took."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType

from pdmux_actor.messages import StepPhase
from pdmux_actor.scheduling.decode_outlook import DecodeOutlook
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, LaunchCompletion, MixedStep, PrefillSlice
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.learned_scales import LearnedScales, MeasuredSteps
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.bandwidth_sharing import ReadsByModel, slowdown_beside
from profiler.contention import WINDOW, ContentionGuard, worst_of
from profiler.latency import ChunkShape, LatencyModel, decode_by_share
from profiler.specs import DeviceSpec, ModelSpec

_ALONE, _IN_COMPANY = 0.1, 0.9  # share of its time beside the other lane, for a launch to teach about either case

PREFILL, PREFILL_BESIDE, DECODE, MIXED = "prefill", "prefill beside decode", "decode", "mixed"
DECODE_BESIDE = "decode beside decodes"  # measured / what sharing the bandwidth makes of the expectation alone
STEADY_SPREAD = 1 / 0.95  # of fused steps, at worst, before some were seen, and on a machine that is steady
_REMEMBERED_PREFILLS = 256  # on a share: some 40 KB a unit, of which a simulated fleet has hundreds
# Whose factor stands in, in this order, until a phase has been seen.
_STAND_INS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        PREFILL: (PREFILL, PREFILL_BESIDE, MIXED),
        PREFILL_BESIDE: (PREFILL_BESIDE, PREFILL, MIXED),
        DECODE: (DECODE, MIXED, PREFILL),
        MIXED: (MIXED, PREFILL, DECODE),
        DECODE_BESIDE: (DECODE_BESIDE,),
    }
)


class PrefillOutlook:
    """Predicts the prefill of one batch. A policy asks for many shares, decision after decision: each is predicted
    once, until a launch with prompts teaches.
    """

    def __init__(self, modelled_s: Callable[[int], float], scale: Callable[[int], float]) -> None:
        """Both are by SMs: what the latency model says, and what was learned of such prefills."""
        self._modelled_s, self._scale = modelled_s, scale
        self._seconds: dict[tuple[int, int], float] = {}

    def seconds(self, sms: int, learned_on: int | None = None) -> float:
        """`learned_on` as in LatencyPredictor.prefill_s."""
        key = (sms, learned_on or sms)
        known_s = self._seconds.get(key)
        if known_s is None:
            known_s = self._seconds[key] = self._modelled_s(sms) * self._scale(key[1])
        return known_s


class LatencyPredictor:
    """Solo-run latencies of a model, times a learned factor; for decode beside prefill, the worst.

    The factor is a mean of measured / modelled (LearnedScales): a latency model of other hardware will do. Decode
    beside prefill is the solo-run prediction times the contention guard's maximum (MuxWise §3.3.2); prefill beside
    decode has a mean factor of its own, since it needs no worst case (§3.4.1). Decode beside decodes of other models
    is what sharing the bandwidth makes of it (profiler/bandwidth_sharing.py), times one more learned factor.
    """

    def __init__(
        self, latency: LatencyModel, guard: ContentionGuard | None = None, *, counts_steps: bool = True
    ) -> None:
        """Leaves `measured` empty without `counts_steps`."""
        self.guard = guard or ContentionGuard()
        self._latency = latency
        self._by_share = decode_by_share(latency)
        self._scales = LearnedScales()
        self.measured = MeasuredSteps()
        self._counts_steps = counts_steps
        # Policies ask for the same prompts on the same shares, decision after decision. What is predicted of them holds
        # until a launch with prompts teaches.
        self._modelled_prefills: dict[tuple[str, int, tuple[ChunkShape, ...]], float] = {}
        self._prefill_outlooks: dict[tuple[str, str, tuple[ChunkShape, ...]], PrefillOutlook] = {}
        self._reads = ReadsByModel()
        self._spreads: dict[str, deque[float]] = {}  # by model: measured / expected of its last fused steps
        self._outlooks: dict[str, DecodeOutlook] = {}  # by model; until its batch changes or a launch of it teaches

    def prefill_s(
        self,
        model: str,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        sms: int,
        *,
        beside_decode: bool,
        learned_on: int | None = None,
    ) -> float:
        """Predicts a prefill. With `learned_on` the factor of that many SMs applies, whatever `sms` are: to compare
        shares. What a few small slices taught of one of them would else decide.
        """
        return self.prefill_outlook(model, spec, chunks, beside_decode=beside_decode).seconds(sms, learned_on)

    def prefill_outlook(
        self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], *, beside_decode: bool
    ) -> PrefillOutlook:
        """Predicts a prefill on one share after another. Not to be kept, as `decode_outlook`."""
        shapes, phase = tuple(chunks), PREFILL_BESIDE if beside_decode else PREFILL
        key = (model, phase, shapes)
        outlook = self._prefill_outlooks.get(key)
        if outlook is None:
            if len(self._prefill_outlooks) >= _REMEMBERED_PREFILLS:
                self._prefill_outlooks.clear()
            outlook = self._prefill_outlooks[key] = self._new_prefill_outlook(model, spec, shapes, phase)
        return outlook

    def _new_prefill_outlook(
        self, model: str, spec: ModelSpec, shapes: tuple[ChunkShape, ...], phase: str
    ) -> PrefillOutlook:
        size = new_tokens(shapes)
        modelled_s = partial(self._modelled_prefill_s, model, spec, shapes)
        return PrefillOutlook(modelled_s, lambda sms: self._scale(model, phase, sms, size))

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
        outlook = self.decode_outlook(model, spec, contexts)
        return outlook.worst_s(sms, beside) if beside else outlook.solo_s(sms)

    def decode_outlook(self, model: str, spec: ModelSpec, contexts: Sequence[int]) -> DecodeOutlook:
        """Predicts the model's next step. Not to be kept: a launch that lands may change what is expected."""
        outlook = self._outlooks.get(model)
        if outlook is None or (outlook.contexts is not contexts and outlook.contexts != contexts):
            outlook = self._outlooks[model] = self.other_decode_outlook(model, spec, contexts)
        return outlook

    def other_decode_outlook(self, model: str, spec: ModelSpec, contexts: Sequence[int]) -> DecodeOutlook:
        """Predicts a step of sequences that do not run: what is known of those that do is not forgotten for it."""
        scales = self._scales.of_phase(model, _STAND_INS[DECODE])
        beside = self._scales.of_phase(model, _STAND_INS[DECODE_BESIDE])
        reads = partial(self._reads.of, model, spec)
        return DecodeOutlook(reads, contexts, self._by_share(spec, contexts), scales, beside, self.guard)

    def decode_outlooks(self, queues: Iterable[ModelQueue]) -> list[DecodeOutlook]:
        """Predicts the next step of each of the models, all sequences of which decode."""
        return [self.decode_outlook(q.model, q.info.spec, q.context_tokens) for q in queues]

    def decode_steps_s(self, queues: Iterable[ModelQueue], sms: int) -> float:
        """Sums the next steps of the models, one after the other and alone: what decides at every step."""
        total_s = 0.0
        for queue in queues:
            total_s += self.decode_outlook(queue.model, queue.info.spec, queue.context_tokens).solo_s(sms)
        return total_s

    def known_decode_shares(self, model: str, batch: int) -> Set[int]:
        """Shares on which steps of about this batch were measured, without a prefill beside them."""
        return self._scales.known_shares(model, DECODE, batch)

    def mixed_s(
        self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], contexts: Sequence[int], sms: int
    ) -> float:
        size = new_tokens(chunks) + len(contexts)
        return self._latency.mixed_s(spec, chunks, contexts, sms) * self._scale(model, MIXED, sms, size)

    def mixed_spread(self, model: str) -> float:
        """Returns how many times what is expected of a fused step it takes at worst: its prediction is a mean."""
        return max(STEADY_SPREAD, worst_of(self._spreads.get(model, ()), STEADY_SPREAD))

    def _modelled_prefill_s(self, model: str, spec: ModelSpec, shapes: tuple[ChunkShape, ...], sms: int) -> float:
        modelled_s = self._modelled_prefills.get((model, sms, shapes))
        if modelled_s is None:
            if len(self._modelled_prefills) >= _REMEMBERED_PREFILLS:
                self._modelled_prefills.clear()
            modelled_s = self._modelled_prefills[model, sms, shapes] = self._latency.prefill_s(spec, shapes, sms)
        return modelled_s

    def _forget_prefills(self) -> None:
        self._modelled_prefills.clear()
        self._prefill_outlooks.clear()

    def modelled_s(
        self, spec: ModelSpec, launch: ComputeLaunch, sms: int, contexts: Sequence[int] | None = None
    ) -> float:
        """Returns what the latency model alone says of a launch. `contexts` are those of decoding sequences, where they
        are known already.
        """
        match launch:
            case DecodeStep(sequences=sequences, steps=steps):
                outlook = self._outlooks.get(launch.model)
                if outlook is not None and outlook.contexts is contexts:
                    return steps * outlook.modelled_s(sms)
                return steps * self._latency.decode_s(spec, _lengths(sequences, contexts), sms)
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last):
                whole_s = self._modelled_prefill_s(launch.model, spec, tuple([c.shape for c in chunks]), sms)
                return whole_s * (last - first) / spec.num_layers
            case MixedStep(chunks=chunks, sequences=sequences):
                return self._latency.mixed_s(spec, [c.shape for c in chunks], _lengths(sequences, contexts), sms)

    def expected_s(self, flight: LaunchInFlight, *, beside_other_lane: bool) -> float:
        """Returns what a launch that takes off now is expected to take: for a decode beside a prefill, its worst
        case.
        """
        model, sms, size = flight.launch.model, flight.sms, size_of(flight.launch)
        match flight.launch:
            case DecodeStep():
                solo_s = flight.modelled_s * self._scale(model, DECODE, sms, size)
                if flight.beside_demand > 0.0:
                    solo_s *= slowdown_beside(flight.demand, flight.beside_demand)
                    solo_s *= self._scale(model, DECODE_BESIDE, sms, size)
                if not flight.beside:
                    return solo_s
                return solo_s * self.guard.slowdown(flight.guard_cell)
            case MixedStep():
                return flight.modelled_s * self._scale(model, MIXED, sms, size)
            case PrefillSlice():
                phase = PREFILL_BESIDE if beside_other_lane else PREFILL
                return flight.modelled_s * self._scale(model, phase, sms, size)

    def alone_s(self, spec: ModelSpec, flight: LaunchInFlight, sms: int) -> float:
        """Returns what a launch is expected to take with nothing beside it, on `sms` SMs."""
        launch = flight.launch
        phase = PREFILL if isinstance(launch, PrefillSlice) else MIXED if isinstance(launch, MixedStep) else DECODE
        modelled_s = self.modelled_s(spec, launch, sms, flight.lengths)
        return modelled_s * self._scale(launch.model, phase, sms, size_of(launch))

    def has_measured(self, launch: ComputeLaunch) -> bool:
        """Returns whether a launch of this model and kind has been measured: what is expected of the first ones is a
        guess.
        """
        match launch:
            case DecodeStep():
                phases: Sequence[str] = (DECODE,)
            case MixedStep():
                phases = (MIXED,)
            case PrefillSlice():
                phases = (PREFILL, PREFILL_BESIDE)
        return self._scales.of_phase(launch.model, phases) is not None

    def demand(self, device: DeviceSpec, spec: ModelSpec, flight: LaunchInFlight) -> Callable[[], float] | None:
        """Returns what computes the share of the device's bandwidth that a decode alone is expected to draw on its SMs,
        as of now, at any time while it is in flight. None: it is no decode.
        """
        launch = flight.launch
        if not isinstance(launch, DecodeStep):
            return None
        step_s = flight.modelled_s * self._scale(launch.model, DECODE, flight.sms, size_of(launch)) / launch.steps
        contexts = flight.contexts or flight.lengths
        return partial(self._demand_of, device, spec, launch.model, contexts, step_s)

    def learn(self, flight: LaunchInFlight, done: LaunchCompletion) -> None:
        measured_s = done.finished_s - done.started_s
        if flight.modelled_s <= 0 or measured_s <= 0:
            return
        self._outlooks.pop(flight.launch.model, None)
        if not isinstance(flight.launch, DecodeStep):
            self._prefill_outlooks.clear()
        company = min(1.0, flight.company_s / measured_s)
        launch, sms, ratio = flight.launch, flight.sms, measured_s / flight.modelled_s
        model, size, scales = launch.model, size_of(launch), self._scales
        phase: StepPhase | None = None  # that the launch counts for
        match launch:
            case DecodeStep() if company <= _ALONE:
                scales.observe(model, DECODE, sms, size, ratio)
                phase = StepPhase.DECODE
            case DecodeStep() if (among_decodes := flight.decode_company_s / measured_s) > _ALONE:
                if among_decodes >= _IN_COMPANY and not flight.beside:
                    ratio /= slowdown_beside(flight.demand, flight.beside_demand)
                    if scales.knows(model, DECODE):
                        ratio /= self._scale(model, DECODE, sms, size)
                        scales.observe(model, DECODE_BESIDE, sms, size, ratio)
                    else:  # a model whose steps never run alone
                        scales.observe(model, DECODE, sms, size, ratio)
            case DecodeStep() if company >= _IN_COMPANY and scales.knows(model, DECODE):
                self.guard.observe(flight.guard_cell, ratio / self._scale(model, DECODE, sms, size))
                phase = StepPhase.DECODE_BESIDE
            case MixedStep():
                if scales.is_settled(model, MIXED, sms, size):
                    spread = self._spreads.setdefault(model, deque(maxlen=WINDOW))
                    spread.append(ratio / self._scale(model, MIXED, sms, size))
                scales.observe(model, MIXED, sms, size, ratio)
                phase = StepPhase.MIXED
            case PrefillSlice() if company <= _ALONE:
                scales.observe(model, PREFILL, sms, size, ratio)
                phase = StepPhase.PREFILL
            case PrefillSlice() if company >= _IN_COMPANY:
                scales.observe(model, PREFILL_BESIDE, sms, size, ratio)
                phase = StepPhase.PREFILL_BESIDE
            case _:
                pass  # partly alone, partly not: teaches nothing
        if phase is not None and self._counts_steps:
            self.measured.note(model, phase, sms, flight.modelled_s, measured_s)

    def forget(self, model: str) -> None:
        self._scales.forget(model)
        self.measured.forget(model)
        self._outlooks.pop(model, None)
        self._reads.forget(model)
        self._spreads.pop(model, None)
        self._forget_prefills()

    def _scale(self, model: str, phase: str, sms: int, size: int) -> float:
        if phase is DECODE:
            outlook = self._outlooks.get(model)  # knows where it is
            if outlook is not None and outlook.bucket == size.bit_length():
                return outlook.scale(sms)
        return self._scales.scale(model, _STAND_INS[phase], sms, size)

    def _demand_of(
        self, device: DeviceSpec, spec: ModelSpec, model: str, contexts: Sequence[int], step_s: float
    ) -> float:
        return self._reads.of(model, spec).demand(device, contexts, step_s)


def _lengths(sequences: Sequence[TokenSequence], known: Sequence[int] | None) -> Sequence[int]:
    return [len(s.token_ids) for s in sequences] if known is None else known


def new_tokens(chunks: Sequence[ChunkShape]) -> int:
    return sum([chunk.new_tokens for chunk in chunks])


def size_of(launch: ComputeLaunch) -> int:
    """Tokens that go through a layer at once."""
    match launch:
        case DecodeStep(sequences=sequences):
            return len(sequences)
        case MixedStep(chunks=chunks, sequences=sequences):
            return sum([chunk.length for chunk in chunks]) + len(sequences)
        case PrefillSlice(chunks=chunks):
            return sum([chunk.length for chunk in chunks])
