"""Defines what the plugin changes in SGLang's scheduler: its choice of partition and slice, and defects of its
multiplexing.

Each hook gets the original first, then the scheduler. `Any` is SGLang's: its classes are not there where types are
checked. SGLang's names and behaviour are those of 0.5.23.
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pdmux_actor.backends.sglang.dispatch_state import PluginDispatch
from pdmux_actor.backends.sglang.link import (
    DecisionsTold,
    FromPlugin,
    GuardKept,
    KeepGuard,
    LaunchTook,
    PluginLoad,
    RecordsTold,
    SchedulerLink,
    TellDecisions,
    TellRecords,
    UsePolicy,
)
from pdmux_actor.backends.sglang.sampling_hooks import from_schedule_batch, grammar_is_ready
from pdmux_actor.backends.sglang.snapshot import Directive
from profiler.probe import LaunchShape

_PAUSED_POLL_S = 0.001
_REPORT_EVERY_S = 0.25
DISPATCH_STATE = "_muxfleet_dispatch_state"  # of the scheduler, as attributes
REPORTER = "_muxfleet_reporter"
QUOTA_RPC = "muxfleet_use_quota"
TIME_RPC = "muxfleet_time_launch"
_HELD: object = object()  # the result of a decode step that did not run

Original = Callable[..., Any]


class LoopEnded(Exception):
    """SGLang's multiplexing loop has no end of its own (defect D4)."""


class Reporter:
    """Talks to the engine process, on rank 0 only."""

    def __init__(self, link: SchedulerLink, dispatch_state: PluginDispatch, scheduler: Any) -> None:
        self._link = link
        self._dispatch_state = dispatch_state
        self._scheduler = scheduler
        self._next_report_s = 0.0
        self._retractions_total = 0

    def talk(self) -> None:
        for message in self._link.poll():
            match message:
                case UsePolicy(policy=policy):
                    self._dispatch_state.dispatch.set_policy(policy)
                case TellDecisions(call=call, last=last):
                    told = tuple(self._dispatch_state.dispatch.log)[-last:] if last else ()
                    self._link.send(DecisionsTold(call, self._dispatch_state.clock.now_s(), told))
                case TellRecords(call=call):
                    self._link.send(RecordsTold(call, tuple(self._dispatch_state.records)))
                case KeepGuard(call=call):
                    self._dispatch_state.contention_store.keep()
                    self._link.send(GuardKept(call))
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_EVERY_S
            self._link.send(self._load())

    def tell(self, message: FromPlugin) -> None:
        self._link.send(message)

    def _load(self) -> PluginLoad:
        dispatch_state, scheduler = self._dispatch_state, self._scheduler
        used_tokens, cached_tokens = dispatch_state.view.token_counts()
        batches = [
            scheduler.running_batch,
            getattr(scheduler, "split_prefill_batch", None),
            *dispatch_state.put_aside(),
        ]
        prefill_sms, decode_sms = dispatch_state.dispatch.partition
        figures = dispatch_state.dispatch.figures(dispatch_state.clock.now_s())
        return PluginLoad(
            running=sum(len(batch.reqs) for batch in batches if batch is not None),
            waiting=len(scheduler.waiting_queue),
            used_tokens=used_tokens,
            cached_tokens=cached_tokens,
            prefill_sms=prefill_sms,
            decode_sms=decode_sms,
            steps_total=int(scheduler.forward_ct),
            repartitions_total=dispatch_state.dispatch.repartitions_total,
            preemptions_total=dispatch_state.dispatch.preemptions_total,
            waiting_tokens=sum(len(req.origin_input_ids) + len(req.output_ids) for req in scheduler.waiting_queue),
            decode_predicted_s=figures.decode_predicted_s,
            decode_achieved_s=figures.decode_achieved_s,
            prefill_base_s=figures.prefill_base_s,
            prefill_s_per_token=figures.prefill_s_per_token,
            guard_cells_moved_total=dispatch_state.dispatch.predictor.guard.cells_moved,
            steps=dispatch_state.dispatch.measured_steps(),
        )


def dispatch_state_of(scheduler: Any) -> PluginDispatch:
    dispatch_state = getattr(scheduler, DISPATCH_STATE)
    assert isinstance(dispatch_state, PluginDispatch)
    return dispatch_state


# ---- the loop's turn ----


def ingest_requests(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """The first thing of every iteration, on every rank. Decides; honours a pause (D3) and a shutdown (D4)."""
    received = original(scheduler, *args, **kwargs)
    reporter = getattr(scheduler, REPORTER, None)
    if reporter is not None:
        reporter.talk()
    if not scheduler.enable_pdmux:
        return received
    while scheduler._engine_paused and not scheduler.gracefully_exit:
        scheduler._record_scheduler_state_for_paused_engine()
        time.sleep(_PAUSED_POLL_S)
        original(scheduler, *args, **kwargs)
        if reporter is not None:
            reporter.talk()
    if scheduler.gracefully_exit:
        raise LoopEnded
    _decide(scheduler)
    return received


def _decide(scheduler: Any) -> None:
    """Rank 0 for all: decisions from each rank's own clock would part, and the ranks' collectives with them."""
    dispatch_state = dispatch_state_of(scheduler)
    if scheduler.grammar_manager.has_waiting_grammars():  # SGLang looks only when it starts a prefill
        for req in scheduler.grammar_manager.get_ready_grammar_requests():
            scheduler._add_request_to_queue(req)
    if not dispatch_state.has_work():  # the same on all ranks
        dispatch_state.directive = Directive(group=0, layers=int(scheduler.model_config.num_hidden_layers))
        return
    dispatch_state.order_waiting()
    if scheduler.tp_size == 1:
        dispatch_state.directive = dispatch_state.decide()
        return
    import torch  # the process has it

    numbers = torch.zeros(len(dispatch_state.directive.as_numbers()), dtype=torch.int64)
    if torch.distributed.get_rank(scheduler.tp_cpu_group) == 0:
        numbers = torch.tensor(dispatch_state.decide().as_numbers(), dtype=torch.int64)
    else:
        dispatch_state.forget_timings()
    torch.distributed.broadcast(numbers, group=scheduler.tp_cpu_group, group_src=0)
    dispatch_state.directive = Directive.from_numbers(numbers.tolist())


def event_loop(original: Original, scheduler: Any) -> None:
    try:
        original(scheduler)
    except LoopEnded:
        return


# ---- prefill ----


def update_split_prefill_batch(
    original: Original,
    scheduler: Any,
    sm_count: int,
    running_batch: Any,
) -> tuple[bool, Any]:
    """Puts the batch where the loop finds it, or where it does not. True makes the loop wait for both lanes and ask for
    the partition, which is worth it only for another one.
    """
    dispatch_state = dispatch_state_of(scheduler)
    directive = dispatch_state.directive
    if scheduler.split_prefill_batch is None and dispatch_state.held is not None:
        scheduler.split_prefill_batch, dispatch_state.held = dispatch_state.held, None
    if scheduler.split_prefill_batch is None and dispatch_state.suspended is not None and not directive.start:
        _resume(scheduler, dispatch_state)
    if directive.start:
        running_batch = _start(original, scheduler, dispatch_state, sm_count, running_batch)
    elif directive.layers == 0 and scheduler.split_prefill_batch is not None:
        dispatch_state.held, scheduler.split_prefill_batch = scheduler.split_prefill_batch, None
    return _group(scheduler, running_batch) != _current_group(), running_batch


def _start(
    original: Original, scheduler: Any, dispatch_state: PluginDispatch, sm_count: int, running_batch: Any
) -> Any:
    preempted, scheduler.split_prefill_batch = scheduler.split_prefill_batch, None
    others: list[Any] = []
    if limit := dispatch_state.directive.max_prompts:
        others, scheduler.waiting_queue = scheduler.waiting_queue[limit:], scheduler.waiting_queue[:limit]
    _, running_batch = original(scheduler, sm_count, running_batch)
    scheduler.waiting_queue = scheduler.waiting_queue + others
    if scheduler.split_prefill_batch is None:
        scheduler.split_prefill_batch = preempted  # SGLang admits nothing after all
    elif preempted is not None:
        assert dispatch_state.suspended is None, "a batch that preempts is not preempted"
        dispatch_state.suspended = preempted
    return running_batch


def _resume(scheduler: Any, dispatch_state: PluginDispatch) -> None:
    batch, dispatch_state.suspended = dispatch_state.suspended, None
    scheduler.split_prefill_batch = batch
    if batch.split_forward_batch is not None:  # the attention backend holds the metadata of one batch
        scheduler.tp_worker.model_runner.attn_backend.init_forward_metadata(batch.split_forward_batch)


class SlicePlan:
    """SGLang's multiplexing settings, with the layers of a slice as decided (N_PL) where upstream has a fixed number of
    tokens: its loop divides `split_forward_token_budget` by the batch's tokens.
    """

    def __init__(self, settings: Any, scheduler: Any) -> None:
        self.sm_group_num = settings.sm_group_num
        self.manual_divisions = settings.manual_divisions
        self.decode_bs_divisor = settings.decode_bs_divisor
        self._scheduler = scheduler

    @property
    def split_forward_token_budget(self) -> int:
        return int(
            dispatch_state_of(self._scheduler).directive.layers * self._scheduler.split_prefill_batch.extend_num_tokens
        )


def init_pdmux(original: Original, scheduler: Any) -> None:
    original(scheduler)
    scheduler.pdmux_config = SlicePlan(scheduler.pdmux_config, scheduler)


def get_new_batch_prefill(original: Original, scheduler: Any, running_batch: Any) -> Any:
    """A quota is a limit on KV: beyond it nothing is admitted."""
    dispatch_state = dispatch_state_of(scheduler)
    used_tokens, _ = dispatch_state.view.token_counts()
    if used_tokens < dispatch_state.quota_tokens:
        return original(scheduler, running_batch)
    from sglang.srt.managers.schedule_batch import NextBatchPlan

    return NextBatchPlan(batch_to_run=None, running_batch=running_batch)


def use_quota(scheduler: Any, tokens: int) -> None:
    """A method of SGLang's scheduler, called as an RPC: all ranks must admit the same."""
    dispatch_state_of(scheduler).quota_tokens = tokens


def time_launch(scheduler: Any, call: int, launch: dict[str, int], beside: dict[str, int] | None) -> None:
    """An RPC as well: every rank runs the launch, rank 0 tells its time."""
    from pdmux_actor.backends.sglang.launch_timer import LaunchTimer

    if dispatch_state_of(scheduler).has_work():
        raise RuntimeError("the engine has requests")
    timer = LaunchTimer(scheduler)
    if beside is None:
        seconds = timer.time_s(LaunchShape(**launch))
    else:
        seconds = timer.time_beside_s(LaunchShape(**launch), LaunchShape(**beside))
    reporter = getattr(scheduler, REPORTER, None)
    if reporter is not None:
        reporter.tell(LaunchTook(call, seconds))


# ---- decode ----


def update_running_batch(original: Original, scheduler: Any, batch: Any) -> Any:
    if scheduler.enable_pdmux and _decode_waits(scheduler, batch):
        return batch  # as it is: no KV is taken for a step that does not run
    return original(scheduler, batch)


def _decode_waits(scheduler: Any, batch: Any) -> bool:
    return not dispatch_state_of(scheduler).directive.decode and any(not req.finished() for req in batch.reqs)


def run_batch(original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    if not scheduler.enable_pdmux:
        return original(scheduler, batch, *args, **kwargs)
    dispatch_state = dispatch_state_of(scheduler)
    if not batch.forward_mode.is_split_prefill():
        if _decode_waits(scheduler, batch):
            return _HELD
        began = dispatch_state.clock.mark()
        result = original(scheduler, batch, *args, **kwargs)
        dispatch_state.clock.decode_launched(began)
        return result
    dispatch_state.note_slice(batch)
    began = dispatch_state.clock.mark()
    result = original(scheduler, batch, *args, **kwargs)
    dispatch_state.clock.slice_launched(began)
    return result


def process_batch_result(original: Original, scheduler: Any, batch: Any, result: Any) -> Any:
    if result is _HELD:
        return None
    if scheduler.enable_pdmux and batch.forward_mode.is_split_prefill():
        dispatch_state_of(scheduler).view.forget_batch(batch)
    return original(scheduler, batch, result)


# ---- partition ----


def adjust_stream_groups(scheduler: Any, running_batch: Any) -> tuple[int, Any]:
    """Instead of upstream's table of batch sizes. Both lanes are empty."""
    from sglang.srt.multiplex import pdmux_context

    group = _group(scheduler, running_batch)
    pdmux_context.set_current_stream_idx(group)
    scheduler.tp_worker.model_runner.update_decode_attn_backend(group)
    return group, scheduler.stream_groups[group]


def _group(scheduler: Any, running_batch: Any) -> int:
    """The loop asks again and again for another group than 0 while nothing decodes."""
    return 0 if running_batch.is_empty() else dispatch_state_of(scheduler).directive.group


def _current_group() -> int:
    from sglang.srt.multiplex import pdmux_context

    return int(pdmux_context.get_current_stream_idx())


# ---- what upstream forgets about a batch that is on its way through the layers ----


def collect_inflight_batches(original: Original, scheduler: Any) -> list[Any]:
    """D1: an abort in mid-prefill is lost without it."""
    batches = list(original(scheduler))
    if scheduler.enable_pdmux:
        batches += [scheduler.split_prefill_batch, *dispatch_state_of(scheduler).put_aside()]
    return batches


def is_fully_idle(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> bool:
    """D2: a cache flush, a weight update or a release of memory in mid-prefill destroys the scheduler without it."""
    idle = bool(original(scheduler, *args, **kwargs))
    return idle and not (scheduler.enable_pdmux and dispatch_state_of(scheduler).batch is not None)


def on_idle(original: Original, scheduler: Any) -> None:
    """Its checks take KV of a batch that was put aside for a leak."""
    if not (scheduler.enable_pdmux and dispatch_state_of(scheduler).put_aside()):
        original(scheduler)


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_GRAMMARS = "sglang.srt.constrained.grammar_manager.GrammarManager"
_MIXIN = "sglang.srt.multiplex.multiplexing_mixin.SchedulerMultiplexMixin"

AROUND: Mapping[str, Original] = MappingProxyType(
    {
        f"{_SCHEDULER}.ingest_requests": ingest_requests,
        f"{_SCHEDULER}.get_new_batch_prefill": get_new_batch_prefill,
        f"{_SCHEDULER}.update_running_batch": update_running_batch,
        f"{_SCHEDULER}.run_batch": run_batch,
        f"{_SCHEDULER}.process_batch_result": process_batch_result,
        f"{_SCHEDULER}._collect_inflight_batches": collect_inflight_batches,
        f"{_SCHEDULER}.is_fully_idle": is_fully_idle,
        f"{_SCHEDULER}.on_idle": on_idle,
        f"{_SAMPLING}.from_schedule_batch": from_schedule_batch,
        f"{_GRAMMARS}._apply_request_reasoning_config": grammar_is_ready,
        f"{_MIXIN}.init_pdmux": init_pdmux,
        f"{_MIXIN}.update_split_prefill_batch": update_split_prefill_batch,
        f"{_MIXIN}.event_loop_pdmux": event_loop,
    }
)
REPLACE: Mapping[str, Original] = MappingProxyType({f"{_MIXIN}.adjust_stream_groups": adjust_stream_groups})
RPCS: Mapping[str, Callable[..., None]] = MappingProxyType({QUOTA_RPC: use_quota, TIME_RPC: time_launch})
