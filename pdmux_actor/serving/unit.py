"""A unit without Ray: an engine, the models it is leased, and the streams that gateways open."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pdmux_actor.backends.base import Engine, EngineCapacity
from pdmux_actor.errors import EngineDied
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import FinishReason, GenerateRequest, TokenEvent
from pdmux_actor.models.load_progress import OnProgress
from pdmux_actor.scheduling.decision import LogExcerpt
from pdmux_actor.serving.detokenizer import Vocabulary
from pdmux_actor.serving.frames import SILENCE_S, Delta, FetchKv, Generate, KvFetched, KvMoved
from pdmux_actor.serving.gateway_connection import StreamSettings
from pdmux_actor.serving.kv_transfers import KvTransfers
from pdmux_actor.serving.lease_follower import FIRST_RETRY_S, HeldModel, LeaseFollower
from pdmux_actor.serving.stream_server import StreamServer
from pdmux_actor.serving.token_stream import MERGE_S, DeltaPace, TokenStream
from pdmux_actor.serving.vocabulary_source import load_vocabulary
from placement.unit_role import UnitRole
from profiler.native_refusal import NativeDevice

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 30.0
_ALL_DECISIONS = 1 << 20  # an engine has fewer
_OUR_FAULT = "the unit failed on this request; its log has the traceback"


@dataclass(slots=True, eq=False)
class _OpenStream:
    stream: TokenStream
    held: HeldModel
    opened_s: float = 0.0  # of a request that is traced


class Unit:
    """Implements gateway_connection.StreamHandler. Every stream it opens ends with exactly one last Delta, unless its
    gateway cancels it or goes away: whether the engine finishes it, a stop string does, the model leaves, or the engine
    dies.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        unit_id: str,
        node: str,
        pool: str,
        num_gpus: int,
        host: str = "127.0.0.1",
        port: int = 0,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
        first_retry_s: float = FIRST_RETRY_S,
        silence_s: float = SILENCE_S,
        load_vocabulary: Callable[[ModelAssignment, OnProgress], Vocabulary] = load_vocabulary,
        engine_version: str = "",
        role: UnitRole = UnitRole.BOTH,
        native_on: NativeDevice | None = None,
    ) -> None:
        """`host` is bound and advertised. A gateway that says nothing for `silence_s` is taken for lost."""
        self._engine = engine
        self.unit_id = unit_id
        self._node = node
        self._pool = pool
        self._num_gpus = num_gpus
        self._engine_version = engine_version
        self._role = role
        self._native_on = native_on
        self._host = host
        self._port = port
        self._server = StreamServer(StreamSettings(unit_id=unit_id, silence_s=silence_s), self)
        self._follower = LeaseFollower(
            engine, load_vocabulary, drain_timeout_s=drain_timeout_s, first_retry_s=first_retry_s
        )
        self._kv = KvTransfers(engine)
        self._stream_token = ""
        self._capacity: EngineCapacity | None = None
        self._streams: dict[str, _OpenStream] = {}
        self._pace = DeltaPace()
        self._held: set[TokenStream] = set()
        self._release: asyncio.TimerHandle | None = None
        self._none_open = asyncio.Event()
        self._stream_numbers = itertools.count()
        self._wants_to_leave = False
        self._refusal: str | None = None  # why no stream is opened any more
        self._failure: str | None = None
        self._pump: asyncio.Task[None] | None = None
        self.on_ended: Callable[[GenerateRequest, float], None] | None = None
        """Is told of each request that is traced, with its seconds."""

    async def start(self) -> None:
        """Raises EngineStartFailed, and OSError when the address cannot be bound."""
        self._capacity = await self._engine.start()
        self._pump = asyncio.create_task(self._pump_events())
        self._port = await self._server.start(self._host, self._port)

    @property
    def endpoint(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def apply_lease(self, lease: Lease) -> None:
        """Returns at once; `report` tells how far it is. A lease that is not newer than the last changes nothing."""
        if self._follower.apply(lease):
            self._stream_token = lease.stream_token
            self._server.set_token(lease.stream_token)

    async def news_within(self, timeout_s: float) -> None:
        """Returns once `report` tells of a model that is ready or gone, at the latest after `timeout_s`."""
        await self._follower.news_within(timeout_s)

    def report(self) -> UnitReport:
        assert self._capacity is not None, "the unit has not started"
        return UnitReport(
            unit_id=self.unit_id,
            node=self._node,
            pool=self._pool,
            num_gpus=self._num_gpus,
            endpoint=self.endpoint,
            memory_bytes=self._capacity.memory_bytes,
            block_bytes=self._capacity.block_bytes,
            total_blocks=self._follower.pool_blocks or self._capacity.total_blocks,
            max_models=self._capacity.max_models,
            constrains=self._capacity.constrains,
            host_memory_bytes=self._capacity.host_memory_bytes,
            launch_limits=self._capacity.launch_limits,
            sizes_pool=self._capacity.sizes_pool,
            lease_version=self._follower.lease_version,
            models=self._model_statuses(),
            load=self._engine.load_report(),
            is_leaving=self._refusal is not None,
            wants_to_leave=self._wants_to_leave,
            failure=self._failure,
            device=self._capacity.device,
            engine=self._engine_version,
            measured_device=self._capacity.measured_device,
            role=self._role,
            native_on=self._native_on,
        )

    def _model_statuses(self) -> tuple[ModelStatus, ...]:
        statuses = self._follower.statuses()
        if self._refusal is None and not self.is_stalled():
            return statuses
        phase = ModelPhase.STALLED if self._refusal is None else ModelPhase.DRAINING
        return tuple(replace(s, phase=phase) if s.phase is ModelPhase.READY else s for s in statuses)

    async def decisions(self, last: int) -> LogExcerpt:
        """Returns what the scheduler decided lately. Raises EngineDied."""
        return await self._engine.decisions(last)

    async def steps_of(self, request_ids: tuple[str, ...], within_s: float) -> LogExcerpt:
        """Returns what the scheduler decided for these requests in the last seconds. Raises EngineDied."""
        return await self._engine.decisions(_ALL_DECISIONS, request_ids=request_ids, within_s=within_s)

    def is_healthy(self) -> bool:
        """False: the engine is gone, or the unit is broken; only a restart helps."""
        pumping = self._pump is not None and not self._pump.done()
        return pumping and self._engine.is_alive() and self._follower.failure is None

    def ask_to_leave(self) -> None:
        """Tells the control loop with the next heartbeat that the models shall move away; all is served meanwhile."""
        self._wants_to_leave = True

    async def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Opens no more streams and waits for those that are open; False when some still are after `timeout_s`."""
        self._refusal = self._refusal or "this unit is shutting down"
        self._none_open.clear()
        if not self._streams:
            return True
        try:
            await asyncio.wait_for(self._none_open.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends what is still open with a retryable failure, then the server and the engine."""
        self._fail_all("this unit is shutting down")
        await self._server.stop()
        await self._kv.stop()
        await self._follower.stop()
        await self._engine.stop()
        if self._pump is not None:
            # no deadline: the engine has stopped, and with it its events
            await asyncio.wait([self._pump])

    # ---- StreamHandler ----

    def is_stalled(self) -> bool:
        return self._engine.is_stalled()

    def open(self, message: Generate, send: Callable[[Delta], None]) -> TokenStream | None:
        held = self._follower.ready(message.request.model)
        refusal = self._refusal
        if refusal is None and not self._engine.is_alive():
            refusal = "the engine has ended"  # the pump is about to learn of it; nothing dies under this request
        if held is None and refusal is None:
            refusal = f"model {message.request.model!r} is not ready on this unit"
        weights = message.request.weights
        if held is not None and refusal is None and weights and not self._follower.has_weights(held.model, weights):
            refusal = f"model {message.request.model!r} has other weights on this unit than its prompt was made for"
        if held is None or refusal is not None:
            send(Delta(message.stream, 0, "", [], finish=FinishReason.ERROR, error=refusal, retryable=True))
            return None
        assert held.vocabulary is not None
        # Two gateways may use one id, and one gateway may come back with it before the engine has let go of it.
        request_id = f"{message.request.request_id}#{next(self._stream_numbers)}"
        request = replace(message.request, request_id=request_id, weights=())  # engines know the one that they have
        try:
            stream = TokenStream(
                stream=message.stream, request=request, vocabulary=held.vocabulary, credit=message.credit, send=send
            )
            if request.kv_from:
                kv_weights = self._follower.ready_weights(request.model) or ()
                self._kv.fetch(request, self._stream_token, kv_weights, self._on_moved)
            else:
                self._engine.submit(request)
        except Exception:  # one request must not cost the others their connection
            logger.exception("a request cannot be opened", extra={"generation_id": request_id})
            send(Delta(message.stream, 0, "", [], finish=FinishReason.ERROR, error=_OUR_FAULT))
            return None
        self._streams[request_id] = opened = _OpenStream(stream, held)
        if request.traceparent:
            opened.opened_s = time.monotonic()
        held.open_streams += 1
        return stream

    def give_kv(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        if self._follower.ready_weights(asked.prompt.model) == asked.weights:
            self._kv.read(asked, send)
        else:
            send(KvFetched(asked.call, None))

    def _on_moved(self, request: GenerateRequest, moved: KvMoved) -> None:
        if (opened := self._streams.get(request.request_id)) is not None:
            opened.stream.note_moved(moved)
            self._engine.submit(request)

    def cancel(self, stream: TokenStream) -> None:
        stream.cancel()
        if self._forget(stream.request_id):
            self._engine.abort(stream.request_id)

    # ---- from the engine ----

    async def _pump_events(self) -> None:
        reason, died = "the engine has stopped", False
        try:
            async for events in self._engine.events():
                holds = self._pace.holds(time.monotonic())
                for event in events:
                    self._on_event(event, holds=holds)
                if not holds:
                    self._release_held()  # of streams that this step had nothing for
                elif self._held and self._release is None:  # where no other step follows
                    self._release = asyncio.get_running_loop().call_later(MERGE_S, self._release_held)
        except EngineDied as death:
            reason, died = str(death), True
            self._failure = reason
        finally:  # also when a bug of ours ends the pump: nobody shall wait for ever
            self._fail_all(reason, engine_died=died)

    def _on_event(self, event: TokenEvent, *, holds: bool) -> None:
        opened = self._streams.get(event.request_id)
        if opened is None:
            return  # cancelled, or ended by a stop string: its last events were on their way
        is_leaving = self._follower.ready(opened.held.model) is None
        try:
            retryable = is_leaving and event.finish is FinishReason.ERROR
            if opened.stream.absorb(event, retryable=retryable, holds=holds):
                self._held.add(opened.stream)
        except Exception:  # this request's only: it would raise on the next unit, too
            logger.exception("a request's tokens cannot be handled", extra={"generation_id": event.request_id})
            opened.stream.fail_on_ours(_OUR_FAULT)
        if opened.stream.finished:
            self._forget(event.request_id)
            if event.finish is None:
                self._engine.abort(event.request_id)

    def _release_held(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None
        for stream in self._held:
            stream.release()
        self._held.clear()

    def _fail_all(self, reason: str, *, engine_died: bool = False) -> None:
        self._refusal = reason
        for request_id, opened in tuple(self._streams.items()):
            killed = engine_died and not self._kv.awaits(request_id)  # who has not come to the engine did not kill it
            opened.stream.fail(reason, retryable=True, engine_died=killed)
            self._forget(request_id)

    def _forget(self, request_id: str) -> bool:
        opened = self._streams.pop(request_id, None)
        if opened is None:
            return False
        if opened.stream.request.kv_from:
            self._kv.give_up(request_id)
        self._follower.stream_ended(opened.held)
        if self.on_ended is not None and opened.stream.request.traceparent:
            self.on_ended(opened.stream.request, time.monotonic() - opened.opened_s)
        if not self._streams:
            self._none_open.set()
        return True
