"""Forecasts when a model that no unit has ready will be, from what loading units tell. Sans-I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase
from router.view import FleetView

_LEAST_SPAN_S = 0.4  # of a rate: units report twice a second
_UNMEASURED_START_S = 1.0  # from the last byte to a view that shows the model ready
_TOLD_IDLE_S = 10  # bytes that have not moved for so long, and each as long again, are told
_LONGEST_START_S = 600.0


class WaitStage(StrEnum):
    DOWNLOADING = "downloading"
    LOADING = "loading"
    WAKING = "waking"  # out of a unit's host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutlook:
    """Says how far a model is on the unit that will have it first. `share` of the stage's bytes is there; None: the
    unit does not tell. `ready_in_s` None: nothing is known to go by, or it should have been ready by now. No byte has
    come for `idle_s`, and some are missing.
    """

    model: str
    stage: WaitStage
    share: float | None
    ready_in_s: float | None
    idle_s: float = 0.0

    def text(self) -> str:
        """Puts it in words: `loading llama 43 %, ready in about 12 s`, or `loading llama 43 %, no byte for 30 s`."""
        share = "" if self.share is None else f" {self.share * 100:.0f} %"
        when = "" if self.ready_in_s is None else f", ready in about {max(1.0, self.ready_in_s):.0f} s"
        idle_s = self.idle_s // _TOLD_IDLE_S * _TOLD_IDLE_S
        stalled = f", no byte for {idle_s:.0f} s" if idle_s and not when else ""
        return f"{self.stage} {self.model}{share}{when}{stalled}"

    def headers(self) -> Mapping[str, str]:
        told = {"x-muxfleet-load-stage": str(self.stage)}
        if self.share is not None:
            told["x-muxfleet-load-percent"] = f"{self.share * 100:.0f}"
        if self.ready_in_s is not None:
            told["x-muxfleet-ready-in-s"] = f"{max(1.0, self.ready_in_s):.0f}"
        return told


@dataclass(slots=True, eq=False)
class _Load:
    """A model on its way to a unit. `progress` is the newest, seen at `at_s`; the other figures are of the view in
    which its stage was seen first. `wake_s` is how long its way out of host memory takes.
    """

    since_s: float
    wake_s: float | None = None
    progress: LoadProgress | None = None
    at_s: float = 0.0
    first_bytes: int = 0
    first_s: float = 0.0
    whole_s: float | None = None  # when all bytes were there

    def hear(self, progress: LoadProgress | None, now_s: float) -> None:
        if progress is None:
            return
        is_read = self.whole_s is not None and progress.stage is LoadStage.CAPTURING
        if self.progress is None or (progress.stage is not self.progress.stage and not is_read):
            self.first_bytes, self.first_s, self.at_s, self.whole_s = progress.done_bytes, now_s, now_s, None
        elif progress.done_bytes != self.progress.done_bytes:
            self.at_s = now_s
        if self.whole_s is None and progress.stage is not LoadStage.DOWNLOADING and progress.bytes_share >= 1.0:
            self.whole_s = now_s
        self.progress = progress

    def bytes_left_s(self, now_s: float) -> float | None:
        """None while too little was seen of the stage to tell its pace, and where by that pace all should be there."""
        progress = self.progress
        if progress is None:
            return None
        left_bytes = max(0, progress.total_bytes - progress.done_bytes)
        if not left_bytes:
            return 0.0
        came_bytes, span_s = progress.done_bytes - self.first_bytes, self.at_s - self.first_s
        if came_bytes <= 0 or span_s < _LEAST_SPAN_S:
            return None
        left_s = left_bytes * span_s / came_bytes - (now_s - self.at_s)
        return left_s if left_s > 0 else None

    def start_left_s(self, start_s: float, now_s: float) -> float | None:
        """Returns what is left of the engine's start, which takes `start_s` from the last byte; None: it is overdue."""
        left_s = start_s if self.whole_s is None else start_s - (now_s - self.whole_s)
        return left_s if left_s > 0 else None

    def idle_s(self, now_s: float) -> float:
        return 0.0 if self.progress is None or self.progress.bytes_share >= 1.0 else now_s - self.at_s


class LoadForecast:
    """Call `update` with every view.

    What is left of a load is its bytes at the pace of this stage, and what starting the engine took after the last
    byte before. Where no bytes are told it is what loads of the model took so far, less what has passed. Once that is
    over and the model is not ready, nobody knows when it will be. A download's
    estimate has the reading that follows in it only once the model has been loaded before.
    """

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, _Load]] = {}  # by model and unit
        self._wake_s: dict[tuple[str, str], float] = {}  # of models that were in host memory, by unit and model
        self._start_s: dict[str, float] = {}
        self._mean_load_s: Mapping[str, float] = {}
        self._bases: Mapping[str, str] = {}
        self._ready: frozenset[str] = frozenset()

    def update(self, view: FleetView, now_s: float) -> None:
        before, self._loads = self._loads, {}
        self._mean_load_s = {t.model: t.seconds / t.loads for t in view.load_times if t.loads}
        self._bases = {card.model: card.adapter_of for card in view.models if card.adapter_of is not None}
        self._start_s = {card.model: self._start_s[card.model] for card in view.models if card.model in self._start_s}
        ready, wake_s = set[str](), dict[tuple[str, str], float]()
        for unit in view.units:
            unit_id = unit.report.unit_id
            for status in unit.report.models if not unit.report.is_leaving else ():
                model = status.model
                known = before.get(model, {}).get(unit_id)
                if status.asleep is not None:
                    wake_s[unit_id, model] = status.asleep.wake_s
                elif status.phase is ModelPhase.LOADING:
                    load = known or _Load(since_s=now_s, wake_s=self._wake_s.get((unit_id, model)))
                    load.hear(status.progress, now_s)
                    self._loads.setdefault(model, {})[unit_id] = load
                elif status.phase is ModelPhase.READY:
                    ready.add(model)
                    if known is not None and known.whole_s is not None:
                        self._start_s[model] = min(_LONGEST_START_S, now_s - known.whole_s)
        self._wake_s, self._ready = wake_s, frozenset(ready)

    def outlook(self, model: str, now_s: float) -> LoadOutlook | None:
        """None where a unit has the model ready, or none is on its way to it. An adapter waits for its base."""
        if model in self._ready:
            return None
        outlooks = [
            self._told(model, of, load, now_s)
            for of in (model, self._bases.get(model, model))
            for load in self._loads.get(of, {}).values()
        ]
        return min(outlooks, key=_nearness, default=None)

    def _told(self, asked: str, model: str, load: _Load, now_s: float) -> LoadOutlook:
        progress = load.progress
        if progress is None:
            stage = WaitStage.LOADING if load.wake_s is None else WaitStage.WAKING
            expected_s = self._mean_load_s.get(model) if load.wake_s is None else load.wake_s
            left_s = None if expected_s is None else expected_s - (now_s - load.since_s)
            known_s = left_s if left_s is not None and left_s > 0 else None  # overdue: nobody knows
            return LoadOutlook(model=asked, stage=stage, share=None, ready_in_s=known_s)
        left_s, stage = load.bytes_left_s(now_s), WaitStage.DOWNLOADING
        after_s: float | None = self._mean_load_s.get(model, 0.0)
        if progress.stage is not LoadStage.DOWNLOADING:
            after_s = load.start_left_s(self._start_s.get(model, _UNMEASURED_START_S), now_s)
            stage = WaitStage.LOADING
        return LoadOutlook(
            model=asked,
            stage=stage,
            share=progress.bytes_share,
            ready_in_s=None if left_s is None or after_s is None else left_s + after_s,
            idle_s=load.idle_s(now_s),
        )


def _nearness(outlook: LoadOutlook) -> tuple[bool, float, float]:
    return outlook.ready_in_s is None, outlook.ready_in_s or 0.0, -(outlook.share or 0.0)
