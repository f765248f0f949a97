"""The outermost layer: a request id on every response, the last word on our own errors, and the request count."""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.error_bodies import internal_error_response
from router.metrics import GatewayMetrics
from router.streaming import ClientDisconnected

logger = logging.getLogger(__name__)

_FOREIGN = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_MAX_LENGTH = 128
_CLIENT_CLOSED = 499
_ENDPOINTS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics", "/version"}
)


class RequestIdentity:
    """ASGI middleware. Handlers find the id in `request.state.request_id` and may set `request.state.model`.

    `echoes` is False where the server around the app writes the header itself: twice would be "id, id" to clients.
    """

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics, echoes: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._echoes = echoes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = request_id_of(Headers(scope=scope).get("x-request-id"))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._echoes:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnected:
            logger.info("client left", extra={"request_id": request_id})
            if status == 0:  # nobody reads it, but servers insist on an answer
                await Response(status_code=_CLIENT_CLOSED)(scope, receive, send_with_id)
            status = _CLIENT_CLOSED
        except Exception:
            logger.exception("request failed by our own error", extra={"request_id": request_id})
            if status != 0:
                raise
            await internal_error_response(request_id)(scope, receive, send_with_id)
        finally:
            endpoint = scope["path"] if scope["path"] in _ENDPOINTS else "other"
            self._metrics.requests.labels(state.get("model", ""), endpoint, str(status)).inc()


def request_id_of(header: str | None) -> str:
    """The client's id without what does not belong into a log or a header, or a new one."""
    cleaned = _FOREIGN.sub("", (header or "")[:_MAX_LENGTH])
    return cleaned or uuid.uuid4().hex
