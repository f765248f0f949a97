"""The unit as a Ray Serve replica. Serve owns its life, the control loop what it serves."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Protocol

import msgspec
import ray
from ray.util import get_node_ip_address

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.backends.registry import BY_KIND
from pdmux_actor.lease import QUIET_HEARTBEAT_S, Lease, UnitReport
from pdmux_actor.messages import GenerateRequest
from pdmux_actor.scheduling.decision import LogExcerpt
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.control_link import ControlLink
from pdmux_actor.serving.engine_watch import WatchSettings
from pdmux_actor.serving.quiet_pace import QuietPace
from pdmux_actor.serving.unit import DRAIN_TIMEOUT_S, Unit
from placement.unit_role import UnitRole

logger = logging.getLogger(__name__)

_DECISIONS_TIMEOUT_S = 5.0


class UnitNotHealthy(RuntimeError):
    """Serve replaces the replica."""


class ActorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`controller` names the deployment whose `heartbeat(UnitReport) -> Lease` this unit calls. `host` None is the
    node's address. When Serve stops the replica, its models have `move_timeout_s` to move to other units, then its
    streams `drain_timeout_s` to end; both together should be below the deployment's `graceful_shutdown_timeout_s`.
    Where nothing happens, heartbeats come every `quiet_heartbeat_period_s`.
    A new unit counts as ready for Serve, which then stops the next old one, when the control loop has settled it, at
    the latest after `settle_timeout_s`.
    """

    engine: EngineSettings
    pool: str
    num_gpus: int = 1
    controller: str = "Controller"
    controller_app: str = "gateway"
    host: str | None = None
    heartbeat_period_s: float = 0.5
    quiet_heartbeat_period_s: float = QUIET_HEARTBEAT_S
    heartbeat_timeout_s: float = 5.0
    start_timeout_s: float = 120.0
    move_timeout_s: float = 0.0
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    settle_timeout_s: float = 900.0
    watch: WatchSettings = WatchSettings()
    role: UnitRole = UnitRole.BOTH


ReadSteps = Callable[[tuple[str, ...], float], Awaitable[LogExcerpt]]
"""What an engine decided for requests in the last so many seconds. Raises EngineDied."""


class TracedSteps(Protocol):
    def ended(self, request: GenerateRequest, lasted_s: float) -> None: ...

    async def close(self) -> None: ...


TraceSteps = Callable[[ReadSteps], TracedSteps]


def new_unit_id(pool: str) -> str:
    return f"{pool}-{uuid.uuid4().hex[:12]}"


class PdmuxActor:
    """Serves one unit as a replica of `serve.deployment`. Keeps its last lease while the control loop is away."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        settings: dict[str, Any],
        unit_id: str | None = None,
        trace: TraceSteps | None = None,
        engine_run_by: str | None = None,
    ) -> None:
        """`settings` is ActorSettings as plain data. `trace` None: no request's steps are traced. `engine_run_by`: see
        NativeEngine. Raises EngineStartFailed, which fails the deployment visibly.
        """
        self._settings = msgspec.convert(settings, ActorSettings)
        context, kind = ray.get_runtime_context(), self._settings.engine.kind
        self._unit = Unit(
            NativeEngine(
                self._settings.engine,
                start_timeout_s=self._settings.start_timeout_s,
                watch=self._settings.watch,
                run_by=engine_run_by,
            ),
            unit_id=unit_id or new_unit_id(self._settings.pool),
            node=context.get_node_id(),
            pool=self._settings.pool,
            num_gpus=self._settings.num_gpus,
            engine_version=f"{kind} {version('muxfleet')}",
            role=self._settings.role,
            native_on=BY_KIND[kind].native_on.get(kind),
            host=self._settings.host or str(get_node_ip_address()),  # type: ignore[no-untyped-call]  # Ray's
        )
        await self._unit.start()
        self._spans = None if trace is None else trace(self._unit.steps_of)
        if self._spans is not None:
            self._unit.on_ended = self._spans.ended
        self._control = ControlLink(self._settings.controller, self._settings.controller_app)
        self._controller_missing = False
        self._is_settled = False
        self._is_retired = False
        self._heartbeats = asyncio.create_task(self._beat())

    async def check_health(self) -> None:
        """Runs on the loop that serves: Serve also replaces a unit whose check does not return. A model that is absent
        or loading is no illness.

        Only the first waits, for which Serve has no limit and until which it stops no other unit for this one's sake:
        until the unit holds what it shall.
        """
        if self._is_retired:
            raise UnitNotHealthy("the control loop has emptied it and needs it no more")
        if not self._is_settled:
            await self._settle()
        if self._heartbeats.done():
            raise UnitNotHealthy("the unit no longer talks to the control loop") from self._heartbeats.exception()
        if not self._unit.is_healthy():
            raise UnitNotHealthy("the engine process is gone or the unit is broken; its log says why")

    async def decisions(self, unit_id: str, last: int) -> bytes | None:
        """A LogExcerpt as JSON; None from other units than the one asked for. Serve calls all replicas of a deployment.

        Raises:
            EngineDied: the engine process is gone.
            TimeoutError: it does not answer.
        """
        if unit_id != self._unit.unit_id:
            return None
        async with asyncio.timeout(_DECISIONS_TIMEOUT_S):
            return msgspec.json.encode(await self._unit.decisions(last))

    async def retire(self, unit_ids: tuple[str, ...]) -> None:
        """Counts as unhealthy from now on if it is one of these: Serve ends it, and no other."""
        self._is_retired |= self._unit.unit_id in unit_ids

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica."""
        if self._unit.is_healthy() and self._settings.move_timeout_s:
            await self._hand_over()
        if not await self._unit.drain(self._settings.drain_timeout_s):
            logger.warning("streams are still open after the drain")
        self._heartbeats.cancel()
        self._control.close()
        await self._unit.stop()
        if self._spans is not None:
            await self._spans.close()

    async def _settle(self) -> None:
        if not await self._until_settled(self._settings.settle_timeout_s):
            logger.warning("the control loop has not settled this unit; it counts as ready")
        self._is_settled = True

    async def _hand_over(self) -> None:
        """Serves on until other units have the models. Where none can, or nobody leads the units, not for long."""
        self._unit.ask_to_leave()
        if not await self._until_settled(self._settings.move_timeout_s):
            logger.warning("models are still on this unit, which goes now")

    async def _until_settled(self, timeout_s: float) -> bool:
        return await until_settled(
            self._asks_whether_settled,
            is_worth_it=self._unit.is_healthy,
            poll_s=self._settings.heartbeat_period_s,
            timeout_s=timeout_s,
        )

    async def _asks_whether_settled(self) -> bool:
        if not self._control.has_handle:
            return self._controller_missing
        return await self._control.is_settled(self._unit.unit_id)

    async def _beat(self) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        pace = QuietPace(busy_s=settings.heartbeat_period_s, quiet_s=settings.quiet_heartbeat_period_s)
        while True:
            report = self._unit.report()
            pace.note("report", report, loop.time())
            if pace.is_due(loop.time()):
                lease = await self._heartbeat(report)
                if lease is not None:
                    pace.note("lease", lease, loop.time())
                    self._unit.apply_lease(lease)
            await self._unit.news_within(settings.heartbeat_period_s)

    async def _heartbeat(self, report: UnitReport) -> Lease | None:
        """None while the control loop does not answer: the last lease stays."""
        try:
            async with asyncio.timeout(self._settings.heartbeat_timeout_s):
                lease = await self._control.heartbeat(report)
        except Exception as error:
            # Ray, Serve and gRPC raise different trees for "not there", "not yet" and "broken": the unit serves on.
            self._note_controller(missing=True, why=f"{type(error).__name__}: {error}")
            return None
        self._note_controller(missing=False)
        return lease

    def _note_controller(self, *, missing: bool, why: str = "") -> None:
        """One line when it goes and one when it comes back, not one per heartbeat."""
        if missing and not self._controller_missing:
            logger.warning("the control loop does not answer, the last lease stays", extra={"reason": why})
        if not missing and self._controller_missing:
            logger.info("the control loop answers again")
        self._controller_missing = missing


_ANSWER_TIMEOUT_S = 2.0

AskSettled = Callable[[], Awaitable[bool]]


async def until_settled(ask: AskSettled, *, is_worth_it: Callable[[], bool], poll_s: float, timeout_s: float) -> bool:
    """False when the time is over, or the wait is not worth it any more. A control loop that does not answer keeps
    nobody: that is settled, too.
    """
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s and is_worth_it():
        await asyncio.sleep(poll_s)  # a heartbeat has told the control loop before it is asked
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                if await ask():
                    return True
        except Exception as error:  # Ray, Serve and gRPC raise different trees for "not there" and "broken"
            logger.info("the control loop does not say whether this unit is settled", extra={"reason": repr(error)})
            return True
    return False
