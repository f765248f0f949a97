"""The outermost layer: a request id on every response, the last word on our own errors, and the request count."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.error_bodies import error_response, internal_error_response, shape_of
from router.errors import (
    AdminOnly,
    GatewayFault,
    HeadersTooLarge,
    InvalidApiKey,
    ModelNotAllowed,
    RateLimited,
    RouterError,
)
from router.http.streaming import ClientDisconnected
from router.telemetry.metrics import GatewayMetrics
from router.telemetry.request_labels import (
    ALSO_RERANK,
    ALSO_SCORE,
    CLIENT_CLOSED,
    ENDPOINTS,
    GENERATION_ENDPOINTS,
    OTHER,
)
from router.telemetry.service_report import ReceiptBook, log_request
from router.telemetry.tracing import RequestSpans, RequestTrace

logger = logging.getLogger(__name__)

_FOREIGN = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_LENGTH = 128
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})


class RequestIdentity:
    """ASGI middleware. Handlers find the id in `request.state.request_id` and may set `request.state.model`.

    A request whose headers exceed `max_header_bytes` goes no further. `echoes` is False where the server around the app
    writes the header itself: twice would be "id, id" to clients. `client_left` is what the server around the app raises
    in one that reads from a client who has left.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: GatewayMetrics,
        echoes: bool,
        max_header_bytes: int,
        receipts: ReceiptBook,
        spans: RequestSpans | None = None,
        client_left: Sequence[type[Exception]] = (),
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._echoes = echoes
        self._max_header_bytes = max_header_bytes
        self._spans = spans
        self._receipts = receipts
        self._client_left: tuple[type[Exception], ...] = (ClientDisconnected, *client_left)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = request_id_of(Headers(scope=scope).get("x-request-id"))
        status = 0
        started_s = time.monotonic()
        trace = None if self._spans is None else self._trace(self._spans, scope, state)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._echoes:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_header_bytes:
                too_large = error_response(HeadersTooLarge(limit_bytes=self._max_header_bytes), scope["path"])
                await too_large(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except self._client_left:
            logger.info("client left", extra={"request_id": request_id})
            if status == 0:  # nobody reads it, but servers insist on an answer
                await Response(status_code=CLIENT_CLOSED)(scope, receive, send_with_id)
            status = CLIENT_CLOSED
        except asyncio.CancelledError:  # so Serve tells of a client that left
            logger.info("client left", extra={"request_id": request_id})
            status = CLIENT_CLOSED
            raise
        except Exception:
            told = {"request_id": request_id, "model": state.get("model", ""), "endpoint": scope["path"][:200]}
            logger.exception("request failed by our own error", extra=told)
            state["error"] = GatewayFault(request_id=request_id)
            if status != 0:
                raise
            await internal_error_response(request_id, scope["path"])(scope, receive, send_with_id)
        finally:
            error = state.get("error")
            if error is not None:
                status = shape_of(error).status  # of a stream, too, which had begun with another one
            endpoint = _endpoint_of(scope["path"])
            self._metrics.requests.labels(state.get("model", ""), endpoint, str(status)).inc()
            self._count_refusal(error)
            elapsed_s = time.monotonic() - started_s
            log_request(state, endpoint=endpoint, status=status, elapsed_s=elapsed_s)
            self._receipts.note(state, endpoint=endpoint, status=status, elapsed_s=elapsed_s)
            if self._spans is not None and trace is not None:
                self._spans.end(trace, state, status=status)

    def _trace(self, spans: RequestSpans, scope: Scope, state: dict[str, Any]) -> RequestTrace | None:
        endpoint = _endpoint_of(scope["path"])
        if endpoint not in GENERATION_ENDPOINTS:
            return None
        headers = {name: value for name, value in Headers(scope=scope).items() if name in _TRACE_HEADERS}
        trace = spans.start(headers=headers, endpoint=endpoint)
        state["traceparent"] = trace.traceparent
        return trace

    def _count_refusal(self, error: RouterError | None) -> None:
        if isinstance(error, RateLimited):
            self._metrics.rate_limited.labels(error.key).inc()
        elif isinstance(error, InvalidApiKey | ModelNotAllowed | AdminOnly):
            self._metrics.refused_keys.inc()


def request_id_of(header: str | None) -> str:
    """The client's id without what does not belong into a log or a header, or a new one."""
    cleaned = _FOREIGN.sub("", (header or "")[:_MAX_LENGTH])
    return cleaned or uuid.uuid4().hex


def _endpoint_of(path: str) -> str:
    if path in ALSO_RERANK:
        return "/v1/rerank"
    if path == ALSO_SCORE:
        return "/v1/score"
    return path if path in ENDPOINTS else OTHER
