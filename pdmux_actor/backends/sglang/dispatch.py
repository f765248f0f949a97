"""The policies' decisions for SGLang's multiplexing loop: a snapshot in, a directive out. Knows nothing of SGLang.

SGLang's loop runs iterations: it launches a decode step and a prefill slice, waits for the decode step, begins again.
Slices queue up on the prefill lane, so one is launched while the one before it may still run; two at most are there.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pdmux_actor.backends.sglang.mirror import Mirror
from pdmux_actor.backends.sglang.snapshot import Directive, RanSlice, Snapshot
from pdmux_actor.messages import StepTotals
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.batching import PrefillBatch
from pdmux_actor.scheduling.decision import Decision, DecisionKind
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, LaunchCompletion, PrefillSlice
from pdmux_actor.scheduling.launches_in_flight import LaneState, LaunchInFlight
from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, Mixed, StartPrefill, UnitState
from pdmux_actor.scheduling.policies.registry import make_policy
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.contention import ContentionGuard
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec

MAX_SLICES_ON_LANE = 2
_FIGURES_WINDOW_S = 2.0
_SHORT_TOKENS, _LONG_TOKENS = 64, 1024  # between which a prefill's time is taken as a line


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFigures:
    """Holds figures of the last seconds, 0 without a decode step; and the line that prefill times follow now."""

    decode_predicted_s: float
    decode_achieved_s: float
    prefill_base_s: float
    prefill_s_per_token: float


class SglangDispatch:
    def __init__(
        self,
        *,
        policy: str,
        settings: SchedulerSettings,
        device: DeviceSpec,
        partitions: Sequence[tuple[int, int]],
        info: ModelInfo,
        latency: LatencyModel,
        guard: ContentionGuard | None = None,
    ) -> None:
        """`partitions` are (prefill, decode) SMs by ascending decode share. Raises ValueError: an unknown policy."""
        self.groups = ((device.num_sms, 0), *partitions, (0, device.num_sms))
        self.predictor = LatencyPredictor(UnfusedLatency(latency), guard)
        self.log: deque[Decision] = deque(maxlen=settings.decision_log_entries)
        self.steps_total = 0
        self.repartitions_total = 0
        self.preemptions_total = 0
        self._policy = make_policy(policy)
        self._settings = settings
        self._device = device
        self._mirror = Mirror(info)
        self._last = Directive(group=0)
        self._decode: tuple[LaunchInFlight, float] | None = None  # what the last directive launched
        self._slices: deque[tuple[LaunchInFlight, float]] = deque()
        self._logged = 0

    @property
    def partition(self) -> tuple[int, int]:
        """(prefill, decode) SMs in force."""
        return self.groups[self._last.group]

    def set_policy(self, policy: str) -> None:
        """Raises ValueError: an unknown policy."""
        self._policy = make_policy(policy)

    def decide(self, snapshot: Snapshot) -> Directive:
        self._land(snapshot)
        self._mirror.update(snapshot)
        state = self._state(snapshot)
        directive = self._directive(snapshot, state, self._policy.choose(state, snapshot.now_s))
        if directive.group != self._last.group:
            self.repartitions_total += 1
            self._note(snapshot, DecisionKind.PARTITION, group=directive.group)
        self.preemptions_total += directive.start and snapshot.batch is not None
        self._last = directive
        self._decode = self._take_off_decode(snapshot, directive) if directive.decode else None
        return directive

    def figures(self, now_s: float) -> "DispatchFigures":
        queue, sms = self._mirror.queue, self.partition[0] or self._device.num_sms
        recent = [d for d in self.log if d.kind is DecisionKind.DECODE and d.now_s >= now_s - _FIGURES_WINDOW_S]
        count = len(recent) or 1
        short_s, long_s = (
            self.predictor.prefill_s(
                queue.model, queue.info.spec, [ChunkShape(tokens)], sms, beside_decode=bool(queue.running)
            )
            for tokens in (_SHORT_TOKENS, _LONG_TOKENS)
        )
        per_token_s = max(0.0, (long_s - short_s) / (_LONG_TOKENS - _SHORT_TOKENS))
        return DispatchFigures(
            decode_predicted_s=sum(d.predicted_s for d in recent) / count,
            decode_achieved_s=sum(d.measured_s or 0.0 for d in recent) / count,
            prefill_base_s=max(0.0, short_s - _SHORT_TOKENS * per_token_s),
            prefill_s_per_token=per_token_s,
        )

    def measured_steps(self) -> tuple[StepTotals, ...]:
        return self.predictor.measured.of(self._mirror.queue.model, self._device.num_sms)

    # ---- what the policy sees ----

    def _state(self, snapshot: Snapshot) -> UnitState:
        now_s, queue = snapshot.now_s, self._mirror.queue
        batch = suspended = None
        if snapshot.batch is not None:
            batch = self._mirror.batch(snapshot.batch, now_s, ends=snapshot.batch_ends)
        if snapshot.suspended is not None:
            suspended = self._mirror.batch(snapshot.suspended, now_s)
        busy = snapshot.batch_ends or snapshot.slices_on_lane >= MAX_SLICES_ON_LANE
        ends_s = max((took_off_s + flight.expected_s for flight, took_off_s in self._slices), default=now_s)
        prefill_sms = self.partition[0] or self._device.num_sms
        return UnitState(
            device=self._device,
            settings=self._settings,
            predictor=self.predictor,
            queues={queue.model: queue},
            batch=batch,
            suspended=suspended,
            prefill_lane=LaneState(busy=True, sms=prefill_sms, ends_s=ends_s) if busy else LaneState(busy=False, sms=0),
            decode_lane=LaneState(busy=False, sms=0),
        )

    # ---- what it asks for, on SGLang's terms ----

    def _directive(self, snapshot: Snapshot, state: UnitState, actions: Sequence[Action]) -> Directive:
        decode = next((action for action in actions if isinstance(action, Decode)), None)
        prefill = next((action for action in actions if isinstance(action, StartPrefill | ContinuePrefill)), None)
        starts, layers = isinstance(prefill, StartPrefill), 0 if prefill is None else prefill.layers
        decode_sms = None if decode is None else decode.sms
        has_slices = snapshot.slices_on_lane > 0 or snapshot.batch_ends
        no_choice = not actions and not has_slices  # the policy sees nothing to do; SGLang may have room untold
        if no_choice or any(isinstance(action, Mixed) for action in actions):  # a fused step: one beside the other
            starts = bool(snapshot.waiting) and snapshot.batch is None
            layers = self._mirror.queue.info.spec.num_layers if starts else 0
            decode_sms = self._device.num_sms // 2 if snapshot.running else None
        limit = prefill.max_prompts if isinstance(prefill, StartPrefill) else None
        return Directive(
            group=self._group(snapshot, decode_sms, beside=layers > 0 or has_slices),
            layers=layers,
            start=starts,
            decode=decode_sms is not None,
            max_prompts=limit or 0,
            by_deadline=self._policy.target_aware,
        )

    def _group(self, snapshot: Snapshot, decode_sms: int | None, *, beside: bool) -> int:
        """The least partition that gives decode what was asked for; whole device for what is alone."""
        decode_only = len(self.groups) - 1
        if snapshot.batch_ends and snapshot.running:
            return self._last.group  # until that slice has ended, SGLang's loop cannot change it
        if decode_sms is None:
            return self._last.group if snapshot.running and snapshot.slices_on_lane else 0
        if not beside:
            return decode_only
        partitions = range(1, decode_only)
        group = next((i for i in partitions if self.groups[i][1] >= decode_sms), decode_only - 1)
        # A change waits for both lanes: one step down is not worth that.
        return self._last.group if self._last.group == group + 1 < decode_only else group

    # ---- learning from what it took ----

    def _take_off_decode(self, snapshot: Snapshot, directive: Directive) -> tuple[LaunchInFlight, float]:
        queue = self._mirror.queue
        launch = DecodeStep(model=queue.model, sequences=tuple(queue.running))
        beside_slices = directive.layers > 0 or snapshot.slices_on_lane > 0
        flight = self._flight(launch, self.groups[directive.group][1], snapshot.now_s)
        flight.contexts = [len(s.token_ids) for s in queue.running]
        if beside_slices and snapshot.batch is not None:
            flight.beside = self._mirror.batch(snapshot.batch, snapshot.now_s).shapes
        elif beside_slices and queue.waiting:
            flight.beside = [queue.chunk_shape(queue.waiting[0])]
        flight.expected_s = self.predictor.expected_s(flight, beside_other_lane=bool(flight.beside))
        return flight, snapshot.now_s

    def _flight(self, launch: ComputeLaunch, sms: int, now_s: float) -> LaunchInFlight:
        sms = sms or self._device.num_sms
        modelled_s = self.predictor.modelled_s(self._mirror.queue.info.spec, launch, sms)
        return LaunchInFlight(launch=launch, sms=sms, modelled_s=modelled_s, took_off_s=now_s)

    def _land(self, snapshot: Snapshot) -> None:
        """What the last iteration launched has run or is on its lane."""
        if snapshot.slice_ran is not None:
            self._take_off_slice(snapshot, snapshot.slice_ran)
        for duration_s in snapshot.slices_s:
            flight, took_off_s = self._slices.popleft()
            self._learn(flight, duration_s)
            self._note(snapshot, DecisionKind.PREFILL, flight=flight, took_off_s=took_off_s, duration_s=duration_s)
        if self._decode is not None and snapshot.decode_s is not None:
            flight, took_off_s = self._decode
            if flight.beside:  # beside a slice all along only if one is still there
                flight.company_s = snapshot.decode_s * (1.0 if snapshot.slices_on_lane else 0.5)
            self._learn(flight, snapshot.decode_s)
            self._note(
                snapshot, DecisionKind.DECODE, flight=flight, took_off_s=took_off_s, duration_s=snapshot.decode_s
            )
        self._decode = None

    def _take_off_slice(self, snapshot: Snapshot, ran: RanSlice) -> None:
        batch: PrefillBatch = self._mirror.batch(ran.batch, snapshot.now_s)
        launch = PrefillSlice(
            batch_id=batch.batch_id,
            model=batch.model,
            chunks=batch.chunks,
            first_layer=ran.first_layer,
            last_layer=ran.last_layer,
        )
        flight = self._flight(launch, self.partition[0], snapshot.now_s)
        flight.expected_s = self.predictor.expected_s(flight, beside_other_lane=self._last.decode)
        flight.company_s = float("inf") if self._last.decode else 0.0
        self._slices.append((flight, snapshot.now_s))

    def _learn(self, flight: LaunchInFlight, duration_s: float) -> None:
        self.steps_total += 1
        self.predictor.learn(flight, LaunchCompletion(launch=flight.launch, started_s=0.0, finished_s=duration_s))

    def _note(
        self,
        snapshot: Snapshot,
        kind: DecisionKind,
        *,
        group: int | None = None,
        flight: LaunchInFlight | None = None,
        took_off_s: float = 0.0,
        duration_s: float = 0.0,
    ) -> None:
        prefill_sms, decode_sms = self.groups[self._last.group if group is None else group]
        launch = None if flight is None else flight.launch
        sliced = launch if isinstance(launch, PrefillSlice) else None
        decoded = launch if isinstance(launch, DecodeStep) else None
        sequences = [c.sequence for c in sliced.chunks] if sliced else list(decoded.sequences) if decoded else []
        self.log.append(
            Decision(
                index=self._logged,
                now_s=snapshot.now_s if launch is None else took_off_s,
                kind=kind,
                prefill_sms=prefill_sms,
                decode_sms=decode_sms,
                model="" if launch is None else launch.model,
                batch_id=sliced.batch_id if sliced else 0,
                first_layer=sliced.first_layer if sliced else 0,
                last_layer=sliced.last_layer if sliced else 0,
                chunks=tuple((c.start, c.length) for c in sliced.chunks) if sliced else (),
                num_decoding=len(decoded.sequences) if decoded else 0,
                steps=1 if decoded else 0,
                request_ids=tuple(s.request.request_id for s in sequences),
                used_blocks=snapshot.used_tokens,
                predicted_s=0.0 if flight is None else flight.expected_s,
                started_s=took_off_s if launch else None,
                finished_s=took_off_s + duration_s if launch else None,
            )
        )
        self._logged += 1


class UnfusedLatency:
    """Implements profiler.latency.LatencyModel. A fused step never ends: no target admits one."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return float("inf")
