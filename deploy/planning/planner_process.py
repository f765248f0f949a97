"""A planner in a process of its own, watched: one that dies or does not answer is replaced, and asked again."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from deploy.control.planner import PlanAnswer, PlanTask
from deploy.planning.planner_frames import PlannerCall, PlannerReply
from pdmux_actor.serving.frames import LENGTH, framed
from pdmux_actor.serving.own_program import OwnProcess, start_own_program

logger = logging.getLogger(__name__)

_WATCH_S = 0.5
_MOST_BACKOFF_S = 30.0
_MOST_DOUBLED = 20  # times: it may fail for days

_Way = tuple[str, Mapping[str, str]]  # the solver, and the profiles by pool


class PlannerLost(Exception):
    """The process ended, or was silent for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerPatience:
    """`budget_s`: what a search may take. `grace_s`: how much longer an answer may take, for a start and for what a
    solver does before it first looks at the clock. `backoff_s`: before a lost process is replaced, doubled as long as
    none answers.
    """

    budget_s: float = 2.0
    grace_s: float = 30.0
    backoff_s: float = 0.2


def start_planner() -> Awaitable[OwnProcess]:
    return start_own_program("deploy.planning.planner_program")


class PlannerProcess:
    """Implements control.planner.Planner on the event loop that runs when it is first used."""

    def __init__(
        self,
        patience: PlannerPatience | None = None,
        start: Callable[[], Awaitable[OwnProcess]] = start_planner,
    ) -> None:
        self._patience = patience or PlannerPatience()
        self._start = start
        self._solver = "search"
        self._profiles: Mapping[str, str] = {}
        self._number = 0
        self._waiting_since_s: float | None = None
        self._task: PlanTask | None = None
        self._asked = b""
        self._answer: PlanAnswer | None = None
        self._found: tuple[_Way, PlanTask, PlanAnswer] | None = None  # what costs nothing to be asked again
        self._decoder = msgspec.msgpack.Decoder(PlannerReply)
        self._connection: OwnProcess | None = None
        self._failures = 0
        self._leading: asyncio.Task[None] | None = None

    def using(self, solver: str, profiles: Mapping[str, str] = MappingProxyType({})) -> "PlannerProcess":
        """Plans with `solver` and by the profiles of these pools from now on, and starts the process, so that it is
        there when it is asked.
        """
        self._solver, self._profiles = solver, dict(profiles)
        self._start_leading()
        return self

    def ask(self, task: PlanTask) -> None:
        self._number += 1
        self._task = task
        self._answer = self._known(task)
        if self._answer is not None:
            self._waiting_since_s = None
            return
        call = PlannerCall(
            number=self._number,
            solver=self._solver,
            budget_s=self._patience.budget_s,
            task=task,
            profiles=self._profiles,
        )
        self._asked = framed(call)
        if self._waiting_since_s is None:
            self._waiting_since_s = asyncio.get_running_loop().time()
        if self._connection is not None:
            self._connection.writer.write(self._asked)
        self._start_leading()

    def answer(self) -> PlanAnswer | None:
        answer, self._answer = self._answer, None
        return answer

    def _known(self, task: PlanTask) -> PlanAnswer | None:
        if self._found is None:
            return None
        way, before, answer = self._found
        return answer if way == self._way and task.resembles(before) else None

    @property
    def _way(self) -> "_Way":
        return self._solver, self._profiles

    def _start_leading(self) -> None:
        if self._leading is None:
            self._leading = asyncio.create_task(self._lead())

    @property
    def pid(self) -> int | None:
        return None if self._connection is None else self._connection.process.pid

    async def close(self) -> None:
        if self._leading is not None:
            self._leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._leading  # no deadline: it is cancelled, and all it does then is to kill
            self._leading = None

    async def _lead(self) -> None:
        """One process after the other, each until it is lost."""
        while True:
            try:
                await self._follow(await self._start())
            except (PlannerLost, OSError, msgspec.DecodeError) as error:
                wait_s = min(_MOST_BACKOFF_S, self._patience.backoff_s * 2.0 ** min(_MOST_DOUBLED, self._failures))
                self._failures += 1
                logger.warning("planner process is replaced", extra={"reason": repr(error), "in_s": wait_s})
                await asyncio.sleep(wait_s)

    async def _follow(self, connection: OwnProcess) -> None:
        self._connection = connection
        reading = asyncio.create_task(_read(connection.reader))
        try:
            if self._waiting_since_s is not None:
                self._waiting_since_s = asyncio.get_running_loop().time()
                connection.writer.write(self._asked)
            while True:
                done, _ = await asyncio.wait({reading}, timeout=_WATCH_S)
                if done:
                    self._hear(self._decoder.decode(reading.result()))
                    reading = asyncio.create_task(_read(connection.reader))
                elif self._is_overdue():
                    raise PlannerLost("it does not answer")
        finally:
            self._connection = None
            reading.cancel()
            connection.kill()

    def _hear(self, reply: PlannerReply) -> None:
        self._failures = 0
        if reply.number != self._number or self._task is None:
            if self._waiting_since_s is not None:
                self._waiting_since_s = asyncio.get_running_loop().time()
            return
        self._answer, self._waiting_since_s = reply.answer, None
        self._found = self._way, self._task, reply.answer

    def _is_overdue(self) -> bool:
        since_s = self._waiting_since_s
        patience_s = self._patience.budget_s + self._patience.grace_s
        return since_s is not None and asyncio.get_running_loop().time() - since_s > patience_s


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))  # no deadline: the watch has one
        return await reader.readexactly(length)  # no deadline: the watch has one
    except (asyncio.IncompleteReadError, OSError) as error:
        raise PlannerLost("it ended") from error


_WITHIN_S = 40.0  # a start, a search and what it may take to look at the clock
_POLL_S = 0.05


async def plan_once(task: PlanTask, solver: str, profiles: Mapping[str, str]) -> PlanAnswer:
    """Raises TimeoutError."""
    planner = PlannerProcess().using(solver, profiles)
    try:
        planner.ask(task)
        async with asyncio.timeout(_WITHIN_S):
            while (answer := planner.answer()) is None:  # noqa: ASYNC110 - a planner sets no event
                await asyncio.sleep(_POLL_S)
        return answer
    finally:
        await planner.close()
