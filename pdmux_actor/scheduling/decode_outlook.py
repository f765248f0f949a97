"""How long the next decode step of a model takes, share by share."""

from collections.abc import Callable, Sequence

from pdmux_actor.scheduling.learned_scales import ScalesByShare
from profiler.contention import ContentionGuard, GuardCell
from profiler.latency import ChunkShape


class DecodeOutlook:
    """Of one batch. A policy asks for many shares, some of them again and again: each is predicted once."""

    def __init__(
        self,
        contexts: Sequence[int],
        modelled_s: Callable[[int], float],
        scales: ScalesByShare | None,
        guard: ContentionGuard,
    ) -> None:
        """`contexts` are tokens by sequence, `modelled_s` is what the latency model says of the step by share; `scales`
        what was learned of decode steps, if anything was.
        """
        self.contexts = contexts
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

    def worst_s(self, sms: int, beside: Sequence[ChunkShape]) -> float:
        """The worst case beside a prefill of these chunks."""
        if self._cell is None or self._beside is not beside:
            self._beside, self._cell = beside, GuardCell.of(0, beside, self.contexts)
        return self.solo_s(sms) * self._guard.slowdown(self._cell.on(sms))
