"""Endpoints that generate share this: reading a body, asking the gateway, sending its answer."""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from router.access.access_control import AccessGrant
from router.errors import BodyTooLarge, RequestTimeout, UnsupportedMediaType
from router.http.held_stream import HeldStream, StartedStream
from router.http.streaming import ClientDisconnected, EventStream, EventStyle, unless_disconnected
from router.openai.body import SMALL_BODY_BYTES
from router.request_terms import Caller
from router.serving.gateway import Gateway
from router.serving.response import RenewedResponse
from router.telemetry.service_report import ServiceReport


class ForModel(Protocol):
    @property
    def model(self) -> str: ...


class ForGeneration(ForModel, Protocol):
    @property
    def streams(self) -> bool: ...


class WholeAnswer(Protocol):
    @property
    def report(self) -> ServiceReport: ...

    async def document(self) -> bytes: ...


ParsedT = TypeVar("ParsedT", bound=ForModel)
RequestT = TypeVar("RequestT", bound=ForGeneration)


def caller_of(request: Request, who: AccessGrant) -> Caller:
    traceparent = getattr(request.state, "traceparent", "")
    return replace(who.caller, request_id=request.state.request_id, traceparent=traceparent)


def generation_endpoint(
    gateway: Gateway,
    parse: Callable[[bytes], RequestT],
    accept: Callable[[RequestT, Caller], Awaitable[RenewedResponse]],
) -> Callable[[Request], Awaitable[Response]]:
    async def generate(request: Request) -> Response:
        return await answer(request, gateway, parse, accept)

    return generate


async def answer(
    request: Request,
    gateway: Gateway,
    parse: Callable[[bytes], RequestT],
    accept: Callable[[RequestT, Caller], Awaitable[RenewedResponse]],
    style: EventStyle | None = None,
) -> Response:
    """Answers with a generation."""
    asked, who = await entered(request, gateway, parse)
    return await answer_asked(request, gateway, asked, who, accept, style)


async def entered(request: Request, gateway: Gateway, parse: Callable[[bytes], ParsedT]) -> tuple[ParsedT, AccessGrant]:
    """Returns what is asked, and by whom. The caller is known before the body is read, which `parse` does."""
    who = gateway.access.identify(request.headers)
    asked = await parsed(request, gateway, parse)
    who = gateway.access.enter(who, asked.model)
    request.state.tenant = who.caller.tenant
    return asked, who


async def answer_asked(
    request: Request,
    gateway: Gateway,
    asked: RequestT,
    who: AccessGrant,
    accept: Callable[[RequestT, Caller], Awaitable[RenewedResponse]],
    style: EventStyle | None = None,
) -> Response:
    accepting = accept(asked, caller_of(request, who))
    if not asked.streams:
        return await _whole(request, accepting, who)
    return await _stream(request, gateway, asked.model, accepting, who, style or EventStyle())


async def answer_whole(
    request: Request,
    gateway: Gateway,
    parse: Callable[[bytes], ParsedT],
    accept: Callable[[ParsedT, Caller], Awaitable[WholeAnswer]],
) -> Response:
    """Answers as `answer` does, what is never streamed."""
    asked, who = await entered(request, gateway, parse)
    return await _whole(request, accept(asked, caller_of(request, who)), who)


async def body_of_request(request: Request, gateway: Gateway) -> bytes:
    """Raises UnsupportedMediaType, RequestTimeout, BodyTooLarge, ClientDisconnected."""
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(header="Content-Type", got=content_type, wanted="send application/json")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise UnsupportedMediaType(header="Content-Encoding", got=encoding, wanted="send the body as it is")
    limits = gateway.limits
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            body = await _read_body(request, limits.max_body_bytes)
    except TimeoutError as error:
        raise RequestTimeout(limit_s=limits.body_timeout_s) from error
    return body.removeprefix(codecs.BOM_UTF8)  # editors of Windows begin files with one


async def parsed(request: Request, gateway: Gateway, parse: Callable[[bytes], ParsedT]) -> ParsedT:
    body = await body_of_request(request, gateway)
    if len(body) <= SMALL_BODY_BYTES:
        asked = parse(body)
    else:  # one at a time, and others' turns of the loop between two
        async with gateway.large_bodies:
            asked = parse(body)
            await asyncio.sleep(0)
    if gateway.view.card(asked.model) is not None:  # names of models that do not exist would grow the metrics
        request.state.model = asked.model
    return asked


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLarge(limit_bytes=limit_bytes)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit_bytes:
                raise BodyTooLarge(limit_bytes=limit_bytes)
    except ClientDisconnect as error:
        raise ClientDisconnected from error
    return bytes(body)


async def _stream(
    request: Request,
    gateway: Gateway,
    model: str,
    accepting: Awaitable[RenewedResponse],
    who: AccessGrant,
    style: EventStyle,
) -> Response:
    """A status is sent only when the first output, or the error in its place, is there; or what a client should know of
    a model that loads and will be there in time.
    """
    rate = {} if who.rate is None else who.rate.headers()
    starting = _started(request, accepting)
    if gateway.view.is_ready(model):
        started = await unless_disconnected(request, starting)
        first, events, served = started.first, started.events, started.report.headers()
    else:
        first, events, served = await _held(request, gateway, model, starting, who)
    return EventStream(
        events,
        first=first,
        request_id=request.state.request_id,
        keep_alive_s=gateway.limits.keep_alive_s,
        write_timeout_s=gateway.limits.write_timeout_s,
        headers={**rate, **served},
        style=style,
        on_error=partial(setattr, request.state, "error"),
    )


async def _held(
    request: Request, gateway: Gateway, model: str, starting: Awaitable[StartedStream], who: AccessGrant
) -> tuple[bytes, AsyncGenerator[bytes, None], Mapping[str, str]]:
    """Returns the first event of a stream that waits for its model, those after it, and its headers as far as they are
    known.
    """
    held = HeldStream(
        starting,
        lambda: gateway.absence.outlook(model),
        clock=gateway.clock,
        patience_s=gateway.patience_s(who.caller),
        every_s=gateway.limits.tell_wait_s,
    )
    started = await unless_disconnected(request, held.begun())
    if started is None:
        events = held.events()
        return await anext(events), events, {}  # one that never began would never let go
    return started.first, started.events, started.report.headers()


async def _whole(request: Request, accepting: Awaitable[WholeAnswer], who: AccessGrant) -> Response:
    rate = {} if who.rate is None else who.rate.headers()
    body, report = await unless_disconnected(request, _document(request, accepting))
    return Response(body, headers={**rate, **report.headers()}, media_type="application/json")


async def _document(request: Request, accepting: Awaitable[WholeAnswer]) -> tuple[bytes, ServiceReport]:
    answer = await accepting
    request.state.report = answer.report
    return await answer.document(), answer.report


async def _started(request: Request, accepting: Awaitable[RenewedResponse]) -> StartedStream:
    answer = await accepting
    request.state.report = answer.report
    events = answer.events()
    return StartedStream(first=await anext(events), events=events, report=answer.report)
