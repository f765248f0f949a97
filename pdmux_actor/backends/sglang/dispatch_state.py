"""muxfleet's state in SGLang's scheduler process: decides between two iterations, and holds batches put aside."""

from collections import deque
from typing import Any

from pdmux_actor.backends.sglang.dispatch import SglangDispatch
from pdmux_actor.backends.sglang.launch_timer import LaunchClock
from pdmux_actor.backends.sglang.plugin_config import PluginConfig
from pdmux_actor.backends.sglang.snapshot import DecisionRecord, Directive, RanSlice, SchedulerView, Snapshot
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.serving.known_latency import ContentionStore, read_known_latency
from profiler.roofline import RooflineLatency

_MAX_RECORDS = 100_000


class PluginDispatch:
    """`held` is the prefill batch that does not go on in this iteration, `suspended` the one that was preempted. SGLang
    knows one batch: these are hidden from its loop and shown to all that asks what is in flight (hooks.py).
    """

    def __init__(self, scheduler: Any, config: PluginConfig) -> None:
        self.config = config
        self.clock = LaunchClock()
        self.dispatch, self.contention_store = new_dispatch(config)
        self.directive = Directive(group=0)
        self.held: Any = None
        self.suspended: Any = None
        self.quota_tokens = config.quota_tokens
        self.records: deque[DecisionRecord] = deque(maxlen=_MAX_RECORDS)
        self.view = SchedulerView(scheduler)
        self._scheduler = scheduler
        self._slice_ran: RanSlice | None = None

    @property
    def batch(self) -> Any:
        """The prefill batch under way, the loop's or ours."""
        return getattr(self._scheduler, "split_prefill_batch", None) or self.held or self.suspended

    def put_aside(self) -> list[Any]:
        return [batch for batch in (self.held, self.suspended) if batch is not None]

    def has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.waiting_queue) or self.batch is not None or not scheduler.running_batch.is_empty()

    def order_waiting(self) -> None:
        """Orders what waits by what all ranks know alike. A request that has had its first token is in no hurry."""
        if self.directive.by_deadline:
            self._scheduler.waiting_queue.sort(key=self.view.due_s)

    def decide(self) -> Directive:
        scheduler = self._scheduler
        running = self.view.running()
        if not running and self.clock.slices_on_lane > 1:
            self.clock.wait_for_oldest_slice()  # nothing else paces the loop: it would launch the whole prefill ahead
        batch, now_s = self.batch, self.clock.now_s()
        suspended = self.suspended if self.suspended is not batch else None
        used_tokens, _ = self.view.token_counts()
        free_tokens = int(scheduler.max_total_num_tokens) - used_tokens
        slices_s = self.clock.take_slices_s()
        snapshot = Snapshot(
            now_s=now_s,
            waiting=self.view.waiting(),
            running=running,
            batch=None if batch is None else self.view.batch(batch),
            suspended=None if suspended is None else self.view.batch(suspended),
            batch_ends=batch is not None and bool(batch.split_prefill_finished),
            slices_on_lane=self.clock.slices_on_lane,
            slice_ran=self._slice_ran,
            slices_s=slices_s,
            decode_s=self.clock.take_decode_s(),
            free_tokens=max(0, min(free_tokens, self.quota_tokens - used_tokens)),
            used_tokens=used_tokens,
        )
        self._slice_ran = None
        directive = self.dispatch.decide(snapshot)
        if self.config.records:
            self.records.append(DecisionRecord(snapshot, directive))
        return directive

    def forget_timings(self) -> None:
        """Discards timings on ranks that follow."""
        self.clock.take_slices_s()
        self.clock.take_decode_s()

    def note_slice(self, batch: Any) -> None:
        """Just before the launch."""
        seen = self.view.batch(batch)
        self._slice_ran = RanSlice(seen, batch.split_index, batch.split_index + batch.split_forward_count)


def new_dispatch(config: PluginConfig) -> tuple[SglangDispatch, ContentionStore]:
    """Builds a dispatcher as the plugin has it; a recorded run is replayed with another of the same."""
    info = ModelInfo(
        model=config.model,
        spec=config.spec,
        geometry=KvGeometry(blocks_per_row=1, tokens_per_row=1),
        eos_token_ids=frozenset(),
        max_model_len=config.spec.max_position_embeddings,
    )
    known = None if config.profile is None else read_known_latency(config.profile)
    keeper = ContentionStore(config.guard, config.device, None if known is None else known.guard)
    dispatch = SglangDispatch(
        policy=config.policy,
        settings=config.scheduler,
        device=config.device,
        partitions=config.partitions,
        info=info,
        latency=RooflineLatency(config.device, num_gpus=config.num_gpus) if known is None else known.latency,
        guard=keeper.guard,
    )
    return dispatch, keeper
