"""Works out how long the next decode step of a model takes, share by share."""

from collections.abc import Callable, Sequence

from pdmux_actor.scheduling.learned_scales import ScalesByShare
from profiler.bandwidth_sharing import decode_bytes
from profiler.contention import ContentionGuard, GuardCell
from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec, ModelSpec


class DecodeOutlook:
    """Predicts the next decode step of one batch. A policy asks for many shares, some of them again and again: each is
    predicted once.
    """

    def __init__(
        self,
        spec: ModelSpec,
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
        self._spec = spec
        self._beside_scales = beside_scales
        self._read_bytes: float | None = None
        self._modelled_s = modelled_s
        self._scales = scales
        self._bucket = len(contexts).bit_length()
        self._guard = guard
        self._solo_s: dict[int, float] = {}
        self._beside: Sequence[ChunkShape] = ()
        self._cell: GuardCell | None = None

    def solo_s(self, sms: int) -> float:
        """Expected when alone."""
        known_s = self._solo_s.get(sms)
        if known_s is None:
            scale = 1.0 if self._scales is None else self._scales.factor(sms, self._bucket)
            known_s = self._solo_s[sms] = self._modelled_s(sms) * scale
        return known_s

    def demand(self, device: DeviceSpec, sms: int) -> float:
        """Share of the device's memory bandwidth that the step alone draws."""
        if self._read_bytes is None:
            self._read_bytes = decode_bytes(self._spec, self.contexts)
        step_s = self.solo_s(sms)
        return min(1.0, self._read_bytes / (step_s * device.memory_bandwidth_bytes_per_s)) if step_s > 0 else 0.0

    def beside_decodes_factor(self, sms: int) -> float:
        """Returns how much longer steps took beside other models' than sharing the bandwidth explains."""
        return 1.0 if self._beside_scales is None else self._beside_scales.factor(sms, self._bucket)

    def worst_s(self, sms: int, beside: Sequence[ChunkShape]) -> float:
        """The worst case beside a prefill of these chunks."""
        if self._cell is None or self._beside is not beside:
            self._beside, self._cell = beside, GuardCell.of(0, beside, self.contexts)
        return self.solo_s(sms) * self._guard.slowdown(self._cell.on(sms))
