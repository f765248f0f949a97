"""Works out how long the next decode step of a model takes, share by share."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from pdmux_actor.scheduling.learned_scales import ScalesByShare
from profiler.bandwidth_sharing import DecodeReads
from profiler.contention import ContentionGuard, SlowdownsByShare
from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec


class _OnShare(msgspec.Struct, frozen=True, gc=False):
    modelled_s: float
    scale: float
    solo_s: float


class DecodeOutlook:
    """Predicts the next decode step of one batch. A policy asks for many shares, some of them again and again: each is
    predicted once.
    """

    def __init__(
        self,
        reads: Callable[[], DecodeReads],
        contexts: Sequence[int],
        modelled_s: Callable[[int], float],
        scales: ScalesByShare | None,
        beside_scales: ScalesByShare | None,
        guard: ContentionGuard,
    ) -> None:
        """`contexts` are tokens by sequence, `modelled_s` is what the latency model says of the step by share; `scales`
        what was learned of decode steps, `beside_scales` of those beside other models' steps, if anything was.
        """
        self.contexts = contexts
        self._modelled_s = modelled_s
        self.bucket = len(contexts).bit_length()
        self._reads = reads
        self._beside_scales = beside_scales
        self._beside_decodes: dict[int, tuple[float, float]] = {}  # by SMs
        self._scales = scales
        self._guard = guard
        self._known: dict[int, _OnShare] = {}  # by SMs
        self._beside: Sequence[ChunkShape] = ()
        self._slowdowns: SlowdownsByShare | None = None

    def solo_s(self, sms: int) -> float:
        """Expected when alone."""
        return (self._known.get(sms) or self._on(sms)).solo_s

    def modelled_s(self, sms: int) -> float:
        """Returns what the latency model says."""
        return (self._known.get(sms) or self._on(sms)).modelled_s

    def scale(self, sms: int) -> float:
        """Returns what was learned of such steps: measured / modelled."""
        return (self._known.get(sms) or self._on(sms)).scale

    def _on(self, sms: int) -> "_OnShare":
        modelled_s, scale = self._modelled_s(sms), 1.0
        if self._scales is not None:
            scale = self._scales.factor(sms, self.bucket)
        known = self._known[sms] = _OnShare(modelled_s, scale, modelled_s * scale)
        return known

    def demand(self, device: DeviceSpec, sms: int) -> float:
        """Share of the device's memory bandwidth that the step alone draws."""
        return self._reads().demand(device, self.contexts, self.solo_s(sms))

    def beside_decodes_factor(self, sms: int) -> float:
        """Returns how much longer steps took beside other models' than sharing the bandwidth explains."""
        return 1.0 if self._beside_scales is None else self._beside_scales.factor(sms, self.bucket)

    def beside_decodes(self, device: DeviceSpec, sms: int) -> tuple[float, float]:
        """Returns `demand`, and the seconds of the step beside other models' without the sharing of the bandwidth."""
        known = self._beside_decodes.get(sms)
        if known is None:
            step_s = self.solo_s(sms) * self.beside_decodes_factor(sms)
            known = self._beside_decodes[sms] = self.demand(device, sms), step_s
        return known

    def slowdowns(self, beside: Sequence[ChunkShape]) -> SlowdownsByShare:
        """Returns the worst that a prefill of these chunks makes of the step, share by share."""
        if self._slowdowns is None or self._beside is not beside:
            self._beside, self._slowdowns = beside, self._guard.by_share(beside, self.contexts)
        return self._slowdowns

    def worst_s(self, sms: int, beside: Sequence[ChunkShape]) -> float:
        """The worst case beside a prefill of these chunks."""
        return self.solo_s(sms) * self.slowdowns(beside).on(sms)


def steps_s(outlooks: Iterable[DecodeOutlook], sms: int, beside: Sequence[ChunkShape] = ()) -> float:
    """Sums the steps of several models on this share, one after the other; at worst where they are `beside` a prefill
    of these chunks.
    """
    total_s = 0.0
    for outlook in outlooks:
        total_s += outlook.worst_s(sms, beside) if beside else outlook.solo_s(sms)
    return total_s
