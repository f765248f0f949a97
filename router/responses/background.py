"""Responses that are made while their clients are away: kept from the start; read, cancelled and followed by id."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from router.error_bodies import error_body
from router.errors import GatewayFault, GatewaysSilent, InvalidRequest, RouterError
from router.responses.background_handover import LOST_S, BackgroundHandover
from router.responses.event_log import EventLog, not_followed
from router.responses.response_items import event_of
from router.responses.response_store import ResponseStore

logger = logging.getLogger(__name__)

_RENEW_S = 5.0
_LOOK_S = 0.5
_FOLLOW_S = 0.25
_MOST_LOG_BYTES = 64 * 1024 * 1024
_LOST: Mapping[str, str] = {
    "code": "gateway_lost",
    "message": "The gateway that worked on this response has ended: ask again.",
}

AskGateways = Callable[..., Awaitable[Sequence[Any]]]
"""As in `response_copies`: of all gateways, this one too."""


class Answer(Protocol):
    def events(self) -> AsyncGenerator[bytes, None]: ...


async def _nobody(method: str, *arguments: object) -> Sequence[Any]:
    return ()


class BackgroundResponses:
    """Tells the others, through the store, every few seconds what it works on: when it has not for `LOST_S`, they call
    the response failed. `ask_gateways` reaches their `response_events`, here `events_after`.
    """

    def __init__(self, store: ResponseStore, ask_gateways: AskGateways = _nobody) -> None:
        self.store = store
        self._ask_gateways = ask_gateways
        self._running: dict[str, asyncio.Task[None]] = {}
        self._documents: dict[str, tuple[str, dict[str, Any]]] = {}  # of those, with their owners
        self._logs: dict[str, tuple[str, EventLog]] = {}  # the oldest first
        self.handover = BackgroundHandover(store, self._running, self._logs, ask_gateways, self._make_room)

    async def run(self) -> None:
        """Says what is worked on, and ends what another gateway has ended, until it is cancelled."""
        loop = asyncio.get_running_loop()
        renewed_s = loop.time()
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                self.handover.close_lost()
                is_due = loop.time() - renewed_s >= _RENEW_S
                for response_id, (owner, document) in tuple(self._documents.items()):
                    if self.store.has_ended(response_id):
                        self._running[response_id].cancel()
                    elif is_due:
                        self.store.put(response_id, owner, msgspec.json.encode(document), is_open=True)
                if is_due:
                    renewed_s = loop.time()
        finally:
            tasks = tuple(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def start(
        self, document: dict[str, Any], owner: str, accepting: asyncio.Future[Answer], first_events: bytes | None
    ) -> bytes:
        """Returns the document as it is kept until the answer is there. With `first_events`, they and those that follow
        are kept, too. Raises InvalidRequest where it cannot be kept.
        """
        response_id, kept = document["id"], msgspec.json.encode(document)
        if not self.store.put(response_id, owner, kept, is_open=True):
            raise InvalidRequest("The response is larger than gateways keep.", param="background")
        log = EventLog()
        if first_events is None:
            log.drop()
        else:
            log.append(first_events)
            self._logs[response_id] = (owner, log)
        self._documents[response_id] = (owner, document)
        task = asyncio.create_task(self._answered(response_id, owner, accepting, log))
        task.add_done_callback(lambda _: self._is_over(response_id, accepting, log))
        self._running[response_id] = task
        return kept

    async def read(self, response_id: str, owner: str) -> bytes:
        """Raises ResponseNotFound, GatewaysSilent."""
        document = await self.store.document(response_id, owner)
        unheard_s = self.store.unheard_s(response_id)
        if unheard_s is None or unheard_s < LOST_S or response_id in self._running:
            return document
        return self._ended(response_id, owner, document, "failed", _LOST)

    async def cancel(self, response_id: str, owner: str) -> bytes:
        """Returns the response as it is then. Raises InvalidRequest, ResponseNotFound, GatewaysSilent."""
        document = await self.read(response_id, owner)
        if not msgspec.json.decode(document).get("background"):
            message = f"Response {response_id} was not made with 'background': it cannot be cancelled."
            raise InvalidRequest(message, param="response_id")
        if self.store.unheard_s(response_id) is not None:
            document = self._ended(response_id, owner, document, "cancelled", None)
            if response_id in self._running:
                self._running[response_id].cancel()
        return document

    # ---- events ----

    async def follow(self, response_id: str, owner: str, after: int) -> AsyncGenerator[bytes, None]:
        """Returns the events after that number, -1 for all of them, from the gateway that has them.

        Raises InvalidRequest, GatewaysSilent, as do the events.
        """
        of_whom, log = self._logs.get(response_id, ("", None))
        if log is not None and of_whom == owner:
            return log.follow(after)
        await self._far_page(response_id, owner, after)
        return self._far_events(response_id, owner, after)

    async def _far_events(self, response_id: str, owner: str, after: int) -> AsyncGenerator[bytes, None]:
        while True:
            events, is_over = await self._far_page(response_id, owner, after)
            after += len(events)
            if events:
                yield b"".join(events)
            elif is_over:
                return
            else:
                await asyncio.sleep(_FOLLOW_S)

    async def _far_page(self, response_id: str, owner: str, after: int) -> tuple[list[bytes], bool]:
        try:
            answers = await self._ask_gateways("response_events", response_id, owner, after)
        except Exception as error:  # as in following other gateways' responses
            answers = [error]
        for answer in answers:
            if isinstance(answer, tuple):
                return answer
        if any(isinstance(answer, Exception) for answer in answers):
            raise GatewaysSilent(response_id=response_id, retry_after_s=1)
        raise not_followed()

    def events_after(self, response_id: str, owner: str, after: int) -> tuple[list[bytes], bool] | None:
        """Tells another gateway what has come, and whether that is all; None: they are not here."""
        of_whom, log = self._logs.get(response_id, ("", None))
        if log is None or of_whom != owner or log.is_dropped:
            return None
        return log.page(after), log.is_over

    def _make_room(self) -> None:
        """Drops logs of what has ended first, the oldest of them, then the largest."""
        left_bytes = sum(log.size_bytes for _, log in self._logs.values())
        order = sorted(self._logs, key=lambda i: (not self._logs[i][1].is_over, -self._logs[i][1].size_bytes))
        for response_id in order:
            if left_bytes <= _MOST_LOG_BYTES:
                return
            _, log = self._logs.pop(response_id)
            left_bytes -= log.size_bytes
            log.drop()

    # ---- work ----

    async def _answered(self, response_id: str, owner: str, accepting: asyncio.Future[Answer], log: EventLog) -> None:
        try:
            await self._work(response_id, owner, accepting, log)
        except asyncio.CancelledError:
            self._fail(response_id, owner, _LOST, log)  # unless it was cancelled, or deleted
            raise
        except Exception as error:
            if not isinstance(error, RouterError):
                logger.exception(
                    "a response in the background failed by our own error", extra={"response": response_id}
                )
            failure = error if isinstance(error, RouterError) else GatewayFault(request_id=response_id)
            said = error_body(failure, "/v1/responses")["error"]
            self._fail(response_id, owner, {"code": said["code"], "message": said["message"]}, log)

    def _is_over(self, response_id: str, accepting: asyncio.Future[Answer], log: EventLog) -> None:
        """Comes after the work, and also where it was cancelled before it began."""
        accepting.cancel()
        log.close()
        del self._running[response_id], self._documents[response_id]
        self._make_room()

    async def _work(self, response_id: str, owner: str, accepting: asyncio.Future[Answer], log: EventLog) -> None:
        answer = await accepting
        has_begun = False
        async with aclosing(answer.events()) as events:
            async for event in events:
                if not has_begun:
                    has_begun = True
                    document = {**self._documents[response_id][1], "status": "in_progress"}
                    self._documents[response_id] = (owner, document)
                    self.store.put(response_id, owner, msgspec.json.encode(document), is_open=True)
                log.append(event)
                if log.num_events % 1024 < 2:
                    self._make_room()
        if not self.store.has_ended(response_id):
            raise InvalidRequest("The answer, with all before it, is larger than gateways keep.", param="background")

    def _fail(self, response_id: str, owner: str, error: Mapping[str, Any], log: EventLog) -> None:
        if self.store.has_ended(response_id):
            return
        document = msgspec.json.encode(self._documents[response_id][1])
        failed = self._ended(response_id, owner, document, "failed", error)
        log.append(event_of("response.failed", log.num_events, response=msgspec.Raw(failed)))

    def _ended(
        self, response_id: str, owner: str, document: bytes, status: str, error: Mapping[str, Any] | None
    ) -> bytes:
        ended = msgspec.json.encode({**msgspec.json.decode(document), "status": status, "error": error})
        self.store.put(response_id, owner, ended)
        return ended
