"""The gateway as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.batches.batch_service import BatchService
from router.batches.batch_settings import BatchSettings
from router.error_bodies import error_response
from router.errors import (
    ControlLoopSilent,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    PathNotFound,
    RouterError,
    UnitNotFound,
    UnitSilent,
)
from router.http.agent_routes import AGENT_BODIES, add_agent_routes
from router.http.batch_lines import line_endpoints
from router.http.batch_routes import BATCH_BODIES, add_batch_routes
from router.http.console_files import add_console
from router.http.generation_endpoint import answer_whole, generation_endpoint
from router.http.live_routes import LiveSources, add_live_routes
from router.http.meant_path import meant_path
from router.http.model_list import model_entry, model_list
from router.http.request_identity import RequestIdentity
from router.http.tokenize_routes import add_tokenize_routes
from router.openai.body import parse_body
from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.document import Document, body_of, responses_of
from router.openai.embeddings import EmbeddingsBody, EmbeddingsRequest
from router.openai.rerank import RerankBody, RerankRequest
from router.openai.schemas import (
    ChatCompletion,
    Completion,
    EmbeddingList,
    Health,
    Model,
    ModelList,
    Readiness,
    RerankReply,
    ScoreList,
    Version,
)
from router.openai.score import ScoreBody, ScoreRequest
from router.openai.tokenize_requests import DetokenizeBody
from router.responses.background import BackgroundResponses
from router.responses.response_store import ResponseStore
from router.serving.embeddings import embedding_prompts
from router.serving.gateway import VERSION, Gateway
from router.serving.reranking import rerank_prompts
from router.serving.scoring import score_prompts
from router.telemetry.request_labels import ALSO_RERANK, ALSO_SCORE
from router.telemetry.tracing import RequestSpans
from router.view import known_fleet

Feed = Callable[[Gateway], Awaitable[None]]
ReadDecisions = Callable[[str, int], Awaitable[bytes | None]]
"""What a unit decided lately, as JSON: unit, how many; None when it does not answer."""
ReadFleet = Callable[[str | None], Awaitable[bytes | None]]
"""What the control loop knows, plans and decided, or why the model named sits where it sits, as JSON; None when it does
not answer.
"""

ReadEvents = Callable[[float], Awaitable[bytes | None]]
"""The events of the fleet in the last so many seconds, as JSON; None when the control loop does not answer."""

ReadMetrics = Callable[[bool], Awaitable[bytes]]
"""The exposition of all gateways, in OpenMetrics' format or in Prometheus' own."""

SHOWN_HEADERS = (
    "retry-after",
    "x-muxfleet-cold-ms",
    "x-muxfleet-load-percent",
    "x-muxfleet-load-stage",
    "x-muxfleet-prefill-ms",
    "x-muxfleet-queue-ms",
    "x-muxfleet-ready-in-s",
    "x-muxfleet-slo",
    "x-muxfleet-slo-clamped",
    "x-muxfleet-unit",
    "x-request-id",
    "x-should-retry",
)
"""To a browser's page; without this it sees none of them."""

_MAX_DECISIONS = 4096
_RETRY_AFTER_S = 5


def create_app(
    gateway: Gateway,
    feed: Feed | None = None,
    *,
    read_decisions: ReadDecisions | None = None,
    read_fleet: ReadFleet | None = None,
    read_metrics: ReadMetrics | None = None,
    responses: BackgroundResponses | None = None,
    read_events: ReadEvents | None = None,
    spans: RequestSpans | None = None,
    echo_request_id: bool = True,
    cors_origins: Sequence[str] = (),
    batches: BatchSettings | None = None,
    live: LiveSources | None = None,
    has_console: bool = False,
    client_left: Sequence[type[Exception]] = (),
) -> FastAPI:
    """`feed` runs for the app's life and keeps the gateway's view fresh. `echo_request_id` is for servers that do not
    add the `x-request-id` header to responses by themselves. Browsers' pages from `cors_origins` ("*": from anywhere)
    may call the API. Without `batches` the gateway keeps none, nor files. `client_left`: see `RequestIdentity`.
    """
    responses = responses or BackgroundResponses(ResponseStore())
    service = BatchService(batches, line_endpoints(gateway), gateway.metrics.batches)
    app = FastAPI(
        title="muxfleet",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(gateway, feed, service, responses),
    )
    if cors_origins:
        _allow_pages(app, cors_origins)
    app.add_middleware(
        RequestIdentity,
        metrics=gateway.metrics,
        echoes=echo_request_id,
        max_header_bytes=gateway.limits.max_header_bytes,
        receipts=gateway.receipts,
        spans=spans,
        client_left=client_left,
    )
    app.add_exception_handler(RouterError, _on_router_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    _add_generation_routes(app, gateway)
    add_agent_routes(app, gateway, responses)
    add_tokenize_routes(app, gateway)
    add_batch_routes(app, gateway, service)
    _add_model_routes(app, gateway)
    _add_operation_routes(app, gateway, read_metrics)
    _add_control_routes(app, gateway, read_decisions, read_fleet, read_events, live)
    if has_console:
        add_console(app)
    document = Document(app, [*AGENT_BODIES, *BATCH_BODIES, DetokenizeBody, EmbeddingsBody, RerankBody, ScoreBody])
    app.openapi = document.build  # type: ignore[method-assign]  # the way FastAPI documents to extend a schema
    return app


def _allow_pages(app: FastAPI, origins: Sequence[str]) -> None:
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=list(SHOWN_HEADERS),
    )


def openapi_document() -> dict[str, Any]:
    """The API as an OpenAPI document."""
    return create_app(Gateway()).openapi()


def _add_generation_routes(app: FastAPI, gateway: Gateway) -> None:
    app.post(
        "/v1/chat/completions",
        name="create_chat_completion",
        openapi_extra=body_of(ChatCompletionRequest),
        **responses_of(ChatCompletion),
    )(generation_endpoint(gateway, partial(parse_body, schema=ChatCompletionRequest), gateway.chat))
    app.post(
        "/v1/completions",
        name="create_completion",
        openapi_extra=body_of(CompletionRequest),
        **responses_of(Completion),
    )(generation_endpoint(gateway, partial(parse_body, schema=CompletionRequest), gateway.complete))

    @app.post("/v1/embeddings", openapi_extra=body_of(EmbeddingsBody), **responses_of(EmbeddingList, streams=False))
    async def create_embeddings(request: Request) -> Response:
        return await answer_whole(request, gateway, EmbeddingsRequest.parse, partial(gateway.pooled, embedding_prompts))

    @app.post("/v1/rerank", openapi_extra=body_of(RerankBody), **responses_of(RerankReply, streams=False))
    async def rerank(request: Request) -> Response:
        return await answer_whole(request, gateway, RerankRequest.parse, partial(gateway.pooled, rerank_prompts))

    for path in ALSO_RERANK:
        app.post(path, include_in_schema=False)(rerank)

    @app.post("/v1/score", openapi_extra=body_of(ScoreBody), **responses_of(ScoreList, streams=False))
    async def score(request: Request) -> Response:
        return await answer_whole(request, gateway, ScoreRequest.parse, partial(gateway.pooled, score_prompts))

    app.post(ALSO_SCORE, include_in_schema=False)(score)


def _add_model_routes(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/models", response_model=ModelList, **responses_of(ModelList, 503))
    async def list_models(request: Request) -> ModelList:
        may_see = gateway.access.identify(request.headers).may_see
        return model_list(gateway.known_view(), may_see, gateway.lacks_tokenizer)

    # Ids contain slashes, raw or as %2F: servers hand over the decoded path.
    @app.get("/v1/models/{model:path}", response_model=Model, **responses_of(Model, 404, 503))
    async def retrieve_model(model: str, request: Request) -> Model:
        who = gateway.access.identify(request.headers)
        model = request.scope["path"].partition("/v1/models/")[2]  # whole: the route's pattern drops a line break
        if not model:
            raise HTTPException(404)
        if not who.may_see(model):
            raise ModelNotFound(model=model)
        card = gateway.card(model)
        return model_entry(gateway.view, card, lacks_tokenizer=gateway.lacks_tokenizer(card))


def _add_operation_routes(app: FastAPI, gateway: Gateway, read_metrics: ReadMetrics | None) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Health:
        return Health()

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", **responses_of(Readiness, 503))
    async def ready() -> Readiness:
        return Readiness(models=gateway.ready_models())

    @app.get("/version")
    async def version() -> Version:
        return Version(version=VERSION)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        if read_metrics is not None:
            text = await read_metrics(openmetrics)
        else:
            text = await asyncio.to_thread(gateway.metrics.exposition, openmetrics=openmetrics)
        return Response(text, headers={"content-type": OPENMETRICS_TYPE if openmetrics else CONTENT_TYPE_LATEST})


def _add_control_routes(
    app: FastAPI,
    gateway: Gateway,
    read_decisions: ReadDecisions | None,
    read_fleet: ReadFleet | None,
    read_events: ReadEvents | None,
    live: LiveSources | None,
) -> None:
    if read_decisions is not None:
        _add_decisions_route(app, gateway, read_decisions)
    if read_fleet is not None:
        _add_fleet_route(app, gateway, read_fleet)
    if live is not None:
        add_live_routes(app, gateway, live)
    if read_events is not None:
        _add_events_route(app, gateway, read_events)


def _add_decisions_route(app: FastAPI, gateway: Gateway, read_decisions: ReadDecisions) -> None:
    # For `muxfleet trace-decisions`, not part of the API: its body is the engine's and may change with it.
    @app.get("/units/{unit}/decisions", include_in_schema=False)
    async def unit_decisions(unit: str, request: Request) -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        last = request.query_params.get("last", str(_MAX_DECISIONS))
        if not (last.isascii() and last.isdigit() and len(last) <= 4 and 1 <= int(last) <= _MAX_DECISIONS):
            raise InvalidRequest(f"last must be a whole number from 1 to {_MAX_DECISIONS}.", param="last")
        if unit not in {u.report.unit_id for u in gateway.known_view().current.units}:
            raise UnitNotFound(unit=unit)
        body = await read_decisions(unit, int(last))
        if body is None:
            raise UnitSilent(unit=unit, retry_after_s=_RETRY_AFTER_S)
        return Response(body, media_type="application/json")


def _add_fleet_route(app: FastAPI, gateway: Gateway, read_fleet: ReadFleet) -> None:
    # For `muxfleet status` and `explain`, not part of the API either.
    @app.get("/fleet", include_in_schema=False)
    async def fleet(request: Request, explain: str | None = None) -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        body = await read_fleet(explain)
        if body is None:
            raise ControlLoopSilent(retry_after_s=_RETRY_AFTER_S)
        return Response(body, media_type="application/json")

    @app.get("/fleet/known", include_in_schema=False)
    async def fleet_of_gateway(request: Request) -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        known = known_fleet(gateway.known_view().current, gateway.metrics.view_age_s())
        return Response(await asyncio.to_thread(msgspec.json.encode, known), media_type="application/json")


def _add_events_route(app: FastAPI, gateway: Gateway, read_events: ReadEvents) -> None:
    # For `muxfleet incident`; docs/events.md has the schema of what it answers.
    @app.get("/fleet/events", include_in_schema=False)
    async def events(request: Request, since_s: str = "3600") -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        if not (since_s.isascii() and since_s.isdigit() and len(since_s) <= 9):
            raise InvalidRequest("since_s must be a whole number of seconds.", param="since_s")
        body = await read_events(float(since_s))
        if body is None:
            raise ControlLoopSilent(retry_after_s=_RETRY_AFTER_S)
        return Response(body, media_type="application/json")


def _lifespan(
    gateway: Gateway, feed: Feed | None, service: BatchService, responses: BackgroundResponses
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batches = asyncio.ensure_future(service.run())
        beside = [batches, asyncio.ensure_future(responses.run())]
        if feed is not None:
            beside.append(asyncio.ensure_future(feed(gateway)))
        try:
            yield
        finally:
            batches.cancel()
            await responses.handover.finish()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await gateway.close()

    return lifespan


async def _on_router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    request.state.error = error
    return error_response(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        known = [
            r.path for r in request.app.routes if isinstance(r, Route) and r.include_in_schema and "{" not in r.path
        ]
        meant = meant_path(path, known)
        return error_response(PathNotFound(method=request.method, path=path, meant=meant), path)
    if error.status_code == 405:
        # Starlette names the methods of the first route with this path only.
        routes = [r for r in request.app.routes if isinstance(r, Route) and r.path_regex.match(request.scope["path"])]
        # A place of its own among those with an id has no other methods than it says.
        own = [route for route in routes if route.path == path and route.include_in_schema] or routes
        allow = ", ".join(sorted({method for route in own for method in route.methods or ()}))
        return error_response(MethodNotAllowed(method=request.method, path=path, allow=allow), path)
    return error_response(InvalidRequest(str(error.detail)), path)
