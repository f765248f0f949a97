"""The only loop in the product: events in, launches out, completions back."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.base import Executor, KvMover, WarmingExecutor
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.prefix_kv import NOTHING_KEPT, KeptRows, PrefixRows
from pdmux_actor.messages import IDLE_REPORT_EVERY_S, LoadReport, TokenEvent
from pdmux_actor.scheduling.events import AttachModel, Event, KeepPrefix, ReadDecisions, ReadPrefix, Stop
from pdmux_actor.scheduling.policies.registry import make_policy
from pdmux_actor.scheduling.scheduler import Scheduler
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.contention import ContentionGuard
from profiler.latency import LatencyModel

_REPORT_EVERY_S = 0.25


class EventSource(Protocol):
    def due(self, now_s: float) -> Iterable[Event]:
        """Events to handle now, in order; each is given once."""
        ...

    def next_due_s(self) -> float | None:
        """Returns when the next event that is known already falls due."""
        ...


class Inbox:
    """Thread-safe; wakes the executor's `wait`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._events: deque[Event] = deque()  # append and popleft are atomic

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def due(self, now_s: float) -> Iterable[Event]:
        return self._taken() if self._events else ()

    def next_due_s(self) -> float | None:
        return None

    def _taken(self) -> Iterator[Event]:
        while self._events:
            yield self._events.popleft()


class Timetable:
    """Events at times that are known beforehand: simulated arrivals."""

    def __init__(self, events: Iterable[tuple[float, Event]]) -> None:
        self._events = deque(sorted(events, key=lambda timed: timed[0]))

    def due(self, now_s: float) -> Iterable[Event]:
        while self._events and self._events[0][0] <= now_s:
            yield self._events.popleft()[1]

    def next_due_s(self) -> float | None:
        return self._events[0][0] if self._events else None


@dataclass(slots=True, eq=False)
class _Awaited:
    """A model that is warming. `total` captures were left when it came."""

    event: AttachModel
    total: int = 0

    def tell(self, captures_left: int) -> None:
        self.total = max(self.total, captures_left)
        if self.event.on_warming is not None:
            self.event.on_warming(self.total - captures_left, self.total)


class EngineLoop:
    """`outbox` gets one call per turn that produced events, `on_load_report` one per period and when a model attaches,
    `on_detached` one for each model whose memory is free again. Without work reports come every `idle_report_s`.

    All run on the engine thread and must not block for long.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        events: EventSource,
        outbox: Callable[[Sequence[TokenEvent]], None],
        on_load_report: Callable[[LoadReport], None] | None = None,
        on_detached: Callable[[str], None] | None = None,
        idle_report_s: float = IDLE_REPORT_EVERY_S,
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._events = events
        self._outbox = outbox
        self._on_load_report = on_load_report
        self._on_detached = on_detached
        self._idle_report_s = idle_report_s
        self._next_report_s = float("-inf")
        self._stopping = False
        self._awaited: list[_Awaited] = []

    def run(self) -> None:
        """Runs until Stop. Closes the executor, also when a turn raises."""
        try:
            while not self._stopping:
                self.turn()
        finally:
            self._executor.close()

    def turn(self) -> None:
        """One pass of the loop. Tokens leave after the next launches are on the lanes, so that the lanes never wait."""
        self.act()
        if not self._stopping:
            self.collect()

    def act(self) -> None:
        """Handles what is due and fills the lanes. A world that moves time itself (a simulated fleet) calls it and
        `collect` apart, each when there is something to do.
        """
        now_s = self._executor.now()
        for event in self._events.due(now_s):
            self._handle(event, now_s)
        for launch in self.scheduler.decide(now_s):
            self._executor.submit(launch)
        self._flush()
        self._report(now_s)

    def collect(self) -> None:
        """Waits for completions, or for the next deadline, and applies them."""
        for done in self._executor.wait(self._deadline_s()):
            self.scheduler.on_completion(done)
        self._detach()
        if self._awaited:
            self._tell_who_is_ready()

    def _handle(self, event: Event, now_s: float) -> None:
        match event:
            case AttachModel():
                self._attach(event, now_s)
            case ReadDecisions(last=last, answer=answer):
                answer(now_s, self.scheduler.log.decisions(last))
            case ReadPrefix(answer=answer):
                answer(self._read_prefix(event))
            case KeepPrefix(answer=answer):
                answer(self._keep_prefix(event))
            case Stop():
                self._stopping = True
            case _:
                self.scheduler.on_event(event, now_s)
                self._next_report_s = min(self._next_report_s, now_s + _REPORT_EVERY_S)
                self._detach()

    def _attach(self, event: AttachModel, now_s: float) -> None:
        table = self.scheduler.attach_model(event.info, event.quota_blocks)
        try:
            self._executor.attach_model(event.info, table)
        except ModelLoadError as error:
            if event.on_failed is None:
                raise
            event.on_failed(error)  # others are served on
            return
        self._next_report_s = now_s
        if event.on_attached is not None:
            event.on_attached()
        self._awaited.append(_Awaited(event))
        self._tell_who_is_ready()

    def _read_prefix(self, asked: ReadPrefix) -> PrefixRows | None:
        mover, prompt = self._executor, self.scheduler.prefixes().of(asked.prompt)
        if not isinstance(mover, KvMover) or prompt is None:
            return None
        layout = mover.row_layout(prompt.model)
        most_rows = max(1, asked.most_bytes // layout.row_bytes)
        rows = prompt.rows[asked.first_row : asked.first_row + most_rows]
        if not rows:
            return None
        data = mover.read_rows(prompt.model, rows)
        return PrefixRows(first_row=asked.first_row, num_rows=len(rows), layout=layout, data=data)

    def _keep_prefix(self, asked: KeepPrefix) -> KeptRows:
        prefixes, mover, given = self.scheduler.prefixes(), self._executor, asked.rows
        prompt = prefixes.of(asked.prompt)
        if not isinstance(mover, KvMover) or prompt is None:
            return NOTHING_KEPT
        layout = mover.row_layout(prompt.model)
        if given is None or given.layout != layout or len(given.data) != given.num_rows * layout.row_bytes:
            return prompt.kept
        room = prefixes.room_for(prompt, given.first_row, given.num_rows)
        if room is None:
            return prompt.kept
        skipped = len(prompt.rows) - given.first_row
        first_byte, num_bytes = skipped * layout.row_bytes, len(room.rows) * layout.row_bytes
        mover.write_rows(prompt.model, room.rows, given.data[first_byte : first_byte + num_bytes])
        return prefixes.fill(room)

    def _detach(self) -> None:
        for model in self.scheduler.take_detached():
            self._executor.detach_model(model)
            if self._on_detached is not None:
                self._on_detached(model)

    def _tell_who_is_ready(self) -> None:
        executor = self._executor
        for awaited in tuple(self._awaited):
            model, on_ready = awaited.event.info.model, awaited.event.on_ready
            if isinstance(executor, WarmingExecutor) and executor.is_warming(model):
                awaited.tell(executor.captures_left(model))
                continue
            self._awaited.remove(awaited)
            if on_ready is not None:
                on_ready()

    def _flush(self) -> None:
        events = self.scheduler.take_token_events()
        if events:
            self._outbox(events)

    def _report(self, now_s: float) -> None:
        if self._on_load_report is not None and now_s >= self._next_report_s:
            report = self.scheduler.load_report()
            self._next_report_s = now_s + (_REPORT_EVERY_S if report.has_work else self._idle_report_s)
            self._on_load_report(replace(report, unpartitioned_reason=self._executor.unpartitioned_reason))

    def _deadline_s(self) -> float | None:
        deadline_s, due_s = self.scheduler.next_deadline_s(), self._events.next_due_s()
        if due_s is not None and (deadline_s is None or due_s < deadline_s):
            deadline_s = due_s
        if self._on_load_report is not None and (deadline_s is None or self._next_report_s < deadline_s):
            deadline_s = self._next_report_s
        return deadline_s


def build_engine(
    executor: Executor,
    *,
    policy: str,
    settings: SchedulerSettings,
    latency: LatencyModel,
    outbox: Callable[[Sequence[TokenEvent]], None],
    on_load_report: Callable[[LoadReport], None] | None = None,
    on_detached: Callable[[str], None] | None = None,
    idle_report_s: float = IDLE_REPORT_EVERY_S,
    guard: ContentionGuard | None = None,
    num_ranks: int = 1,
) -> tuple[EngineLoop, Inbox]:
    """An engine and the inbox that feeds it. Raises ValueError for an unknown policy."""
    inbox = Inbox(executor.wake)
    scheduler = build_scheduler(
        executor, policy=policy, settings=settings, latency=latency, guard=guard, num_ranks=num_ranks
    )
    loop = EngineLoop(
        executor=executor,
        scheduler=scheduler,
        events=inbox,
        outbox=outbox,
        on_load_report=on_load_report,
        on_detached=on_detached,
        idle_report_s=idle_report_s,
    )
    return loop, inbox


def build_scheduler(
    executor: Executor,
    *,
    policy: str,
    settings: SchedulerSettings,
    latency: LatencyModel,
    guard: ContentionGuard | None = None,
    names_blocks: bool = True,
    num_ranks: int = 1,
) -> Scheduler:
    """`guard` None: one that has seen nothing yet. `names_blocks` False: the executor reads no row table. `num_ranks`
    keep the executor's blocks.
    """
    return Scheduler(
        policy=make_policy(policy),
        settings=settings,
        pool=BlockPool(
            executor.total_blocks,
            lendable_share=settings.kv_lendable_share,
            names_blocks=names_blocks,
            num_ranks=num_ranks,
        ),
        device=executor.device,
        latency=latency,
        guard=guard,
    )
