"""One unit's engine in the fleet's virtual time: the product's loop and scheduler on a simulated executor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deploy.simulation.event_queue import EventQueue
from deploy.simulation.virtual_world import Interference, InterferingExecutor
from pdmux_actor.engine import EngineLoop, Inbox, build_scheduler
from pdmux_actor.messages import GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import Arrival, AttachModel, Event
from pdmux_actor.scheduling.launch import LaunchCompletion
from pdmux_actor.scheduling.plain_batch import StretchTokens
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.latency import ChunkShape, LatencyModel, overlapped_s
from profiler.specs import DeviceSpec, ModelSpec

OnTokens = Callable[[Sequence[TokenEvent]], None]
OnLaunch = Callable[[LaunchCompletion], None]
OnStretch = Callable[[StretchTokens], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    info: ModelInfo
    quota_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDesign:
    """`latency` says what launches should take, and is what the scheduler starts its predictions from; they take
    `slowdown` times that: what the figures of its device do not know of this unit. `interference`: by model and the one
    that runs beside it, how much longer still. `device` is one GPU of the group;
    the pool is that of the whole group.
    """

    device: DeviceSpec
    latency: LatencyModel
    block_bytes: int
    total_blocks: int
    policy: str
    settings: SchedulerSettings
    models: tuple[PlacedModel, ...]
    host_s: float
    slowdown: float = 1.0
    interference: Interference = field(default_factory=dict)


class _ToldExecutor(InterferingExecutor):
    """Tells of every launch that has ended, before its tokens leave."""

    on_launch: OnLaunch

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        done = super().wait(deadline_s)
        for completion in done:
            self.on_launch(completion)
        return done


def _nobody_hears(tokens: StretchTokens) -> None:
    raise AssertionError(f"it was not let run ahead: {tokens}")


class SimulatedEngine:
    """Wakes when a launch ends or a request arrives, and at no other time. `on_launch` hears of launches that ended."""

    def __init__(
        self, design: EngineDesign, agenda: EventQueue, on_tokens: OnTokens, *, on_launch: OnLaunch | None = None
    ) -> None:
        self._agenda = agenda
        self._executor = (InterferingExecutor if on_launch is None else _ToldExecutor)(
            device=design.device,
            latency=SlowerLatency(design.latency, design.slowdown) if design.slowdown != 1.0 else design.latency,
            total_blocks=design.total_blocks,
            block_bytes=design.block_bytes,
            clock=agenda.clock,
            host_s=design.host_s,
        )
        self._executor.interference = design.interference
        if isinstance(self._executor, _ToldExecutor) and on_launch is not None:
            self._executor.on_launch = on_launch
        self._inbox = Inbox(agenda.clock.wake)
        self._scheduler = build_scheduler(
            self._executor,
            policy=design.policy,
            settings=design.settings,
            latency=design.latency,
            names_blocks=False,
        )
        self._loop = EngineLoop(
            executor=self._executor, scheduler=self._scheduler, events=self._inbox, outbox=on_tokens
        )
        self._due_s: float | None = None
        self._until_s: Callable[[], float] | None = None
        self._on_stretch: OnStretch = _nobody_hears
        for model in design.models:
            self._inbox.put(AttachModel(model.info, model.quota_blocks))
        self._loop.act()

    def let_run_ahead(self, until_s: Callable[[], float], on_stretch: OnStretch) -> None:
        """Lets it go on at once where nothing waits, up to the time at which `until_s` says that something may come to
        this unit. `on_stretch` then hears of tokens that are still to come.
        """
        self._until_s, self._on_stretch = until_s, on_stretch

    def submit(self, request: GenerateRequest) -> None:
        self.tell(Arrival(request))

    def submit_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Nothing is launched before all of them have come."""
        for request in requests[:-1]:
            self._inbox.put(Arrival(request))
        self.submit(requests[-1])

    @property
    def is_busy(self) -> bool:
        """A launch is on a lane."""
        return self._executor.in_flight > 0

    def holds(self, model: str) -> bool:
        """Attached, or removed with launches that have not ended yet."""
        return any(load.model == model for load in self.load_report().models)

    def tell(self, event: Event) -> None:
        self._inbox.put(event)
        self._loop.act()
        self._ask_for_wake()

    def load_report(self) -> LoadReport:
        return self._scheduler.load_report()

    def load_for_gateways(self) -> LoadReport:
        return self._scheduler.load_for_gateways()

    def _wake(self) -> None:
        if self._due_s != self._agenda.clock.now_s:
            return  # the end moved: a launch that joined meanwhile slows this one down
        # A run that a view or another model's arrival ended mostly goes on: the launch that ends now is in it.
        if self._executor.next_end_s() != self._due_s or not self._run_ahead():
            self._due_s = None
            self._loop.collect()
            self._loop.act()
            self._run_ahead()
        self._ask_for_wake()

    def _run_ahead(self) -> bool:
        """What decides itself needs no wake for each launch, up to when something may come. False: it must be looked
        at.
        """
        if self._until_s is None:
            return False
        is_asked_for = self._due_s == self._executor.next_end_s()  # this wake, or by a request that came since
        ahead = self._scheduler.run_on(self._executor, self._until_s)
        if ahead is None:
            return False
        self._agenda.num_done += ahead.num_ends - is_asked_for  # the wakes that were not needed
        for tokens in ahead.tokens:
            self._on_stretch(tokens)
        return True

    def _ask_for_wake(self) -> None:
        due_s, deadline_s = self._executor.next_end_s(), self._scheduler.next_deadline_s()
        if deadline_s is not None and (due_s is None or deadline_s < due_s):
            due_s = deadline_s
        if due_s is not None:  # what is due already is due now
            due_s = max(due_s, self._agenda.clock.now_s)
        if due_s is not None and due_s != self._due_s:
            self._agenda.wake_at(due_s, self._wake)
        self._due_s = due_s


class SlowerLatency:
    """Implements latency.LatencyModel: every launch takes `factor` times what another model says."""

    def __init__(self, latency: LatencyModel, factor: float) -> None:
        self._latency, self._factor = latency, factor

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._factor * self._latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._factor * self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self._factor * self._latency.mixed_s(spec, chunks, context_tokens, sms)

    def overlapped_s(
        self,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        context_tokens: Sequence[int],
        sms: int,
        *,
        nano_batches: int,
    ) -> float:
        return self._factor * overlapped_s(self._latency, spec, chunks, context_tokens, sms, nano_batches=nano_batches)
