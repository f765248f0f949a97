"""Latency predictions that learn from what launches really took."""

from collections.abc import Iterable, Sequence

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

_SMOOTHING = 0.2  # weight of the newest observation
_MIN_SCALE, _MAX_SCALE = 0.05, 50.0


class LatencyPredictor:
    """A solo-run latency model times one learned factor per (model, phase, lanes overlapped).

    The factor is an exponential mean of measured / modelled. The overlapped factor therefore holds the contention of
    the other lane; before it is learned, the solo factor stands in for it.
    """

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._scales: dict[tuple[str, str, bool], float] = {}

    def prefill_s(self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int, *, overlap: bool) -> float:
        return self._latency.prefill_s(spec, chunks, sms) * self._scale(model, "prefill", overlap)

    def decode_s(self, model: str, spec: ModelSpec, contexts: Sequence[int], sms: int, *, overlap: bool) -> float:
        return self._latency.decode_s(spec, contexts, sms) * self._scale(model, "decode", overlap)

    def mixed_s(
        self, model: str, spec: ModelSpec, chunks: Sequence[ChunkShape], contexts: Sequence[int], sms: int
    ) -> float:
        return self._latency.mixed_s(spec, chunks, contexts, sms) * self._scale(model, "mixed", False)

    def observe(self, model: str, phase: str, *, overlap: bool, predicted_s: float, measured_s: float) -> None:
        """`predicted_s` is what this object said, scale included, when the work was launched."""
        if predicted_s <= 0:
            return
        key = (model, phase, overlap)
        old = self._scale(model, phase, overlap)
        target = min(max(old * measured_s / predicted_s, _MIN_SCALE), _MAX_SCALE)
        # The first observation replaces the prior: a model fitted for other hardware may be off by a factor.
        self._scales[key] = target if key not in self._scales else old + _SMOOTHING * (target - old)

    def forget(self, model: str) -> None:
        for key in self._keys_of(model):
            del self._scales[key]

    def _keys_of(self, model: str) -> Iterable[tuple[str, str, bool]]:
        return [key for key in self._scales if key[0] == model]

    def _scale(self, model: str, phase: str, overlap: bool) -> float:
        solo = self._scales.get((model, phase, False), 1.0)
        return self._scales.get((model, phase, overlap), solo)
