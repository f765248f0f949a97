"""The gateway as a Ray Serve deployment. The one file of this package that knows Ray."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from router.access.api_keys import KeyRing
from router.access.rate_limits import KeyUsage
from router.admission.demand_report import DemandReport
from router.batches.batch_settings import BatchSettings
from router.errors import GatewaysSilent
from router.fleet_follower import FleetFollower, NewsRefusals
from router.http.app import create_app
from router.http.live_routes import LiveSources
from router.limits import GatewayLimits
from router.lived_clock import LivedClock
from router.responses.background import BackgroundResponses
from router.responses.background_handover import HandedEvents
from router.responses.response_copies import ResponseCopies
from router.responses.response_store import ResponseStore
from router.responses.told_copies import newest
from router.serving.gateway import VERSION, Gateway
from router.telemetry.console_parts import joined_parts
from router.telemetry.fleet_metrics import OwnMetrics, merged_exposition, newest_view
from router.telemetry.service_report import write_requests_to_stdout
from router.telemetry.tracing import otlp_spans
from router.view import FleetNews, read_news
from router.what_if import WhatIfChanges

logger = logging.getLogger(__name__)

POLL_S = 0.5
KEYS_POLL_S = 2.0
_ANSWER_TIMEOUT_S = 5.0
_DECISIONS_TIMEOUT_S = 10.0
_METRICS_TIMEOUT_S = 3.0
_RESPONSE_TIMEOUT_S = 3.0
_RETRY_AFTER_S = 5
_WHAT_IF_TIMEOUT_S = 45.0  # a process of the planner's starts for it
_CONSOLE_DECISIONS = 240


@serve.ingress()  # the app is built on the replica, by `__serve_build_asgi_app__`: nothing of it is pickled
class GatewayIngress:
    """Serve's ingress deployment; deploy it with `serve.deployment(GatewayIngress).options(...).bind(...)`.

    Asks the control loop's deployment for the view of the fleet. While that does not answer, the last view stays: the
    loss of the control loop stops no traffic.
    """

    def __init__(
        self,
        *_bound: object,
        controller_deployment: str,
        controller_app: str,
        limits: GatewayLimits | None = None,
        read_keys: Callable[[], KeyRing] | None = None,
        logs_requests: bool = False,
        start_log: Callable[[], None] = lambda: None,
        otlp_endpoint: Callable[[], str | None] = lambda: None,
        cors_origins: Sequence[str] = (),
        batches: Callable[[], BatchSettings | None] = lambda: None,
        has_console: bool = True,
    ) -> None:
        """Serve deploys with an ingress what is bound to it; it is found by its name, as one of another application.

        `start_log`, `otlp_endpoint` and `batches` are called on the replica; `otlp_endpoint` names a collector for
        traces, or None.
        Without `read_keys` anybody may use the API. Raises what `read_keys` raises: a gateway that cannot tell who may
        ask must not start.
        """
        start_log()
        self._controller: DeploymentHandle[Any] | None = None
        self._controller_deployment = controller_deployment
        self._controller_app = controller_app
        self._gateways: DeploymentHandle[Any] | None = None
        self._gateway = Gateway(limits)
        self._clock = LivedClock()
        self._responses = ResponseStore(self._ask_siblings, clock=self._clock.now_s)
        self._copies = ResponseCopies(
            self._responses, self._of_all_gateways, gateway_id=self._gateway.scheduler.gateway_id
        )
        self._background = BackgroundResponses(self._responses, self._of_all_gateways)
        self._news_refusals = NewsRefusals()
        self._cors_origins = cors_origins
        self._batches = batches()
        self._has_console = has_console
        self._read_keys = read_keys
        if read_keys is not None:
            self._gateway.access.set_keys(read_keys())
        endpoint = otlp_endpoint()
        self._spans = None if endpoint is None else otlp_spans(endpoint, version=VERSION)
        if logs_requests:
            write_requests_to_stdout()

    def __serve_build_asgi_app__(self) -> FastAPI:
        # Serve's own middleware answers with the request's id, or makes one.
        return create_app(
            self._gateway,
            self._follow,
            read_decisions=self._read_decisions,
            read_fleet=self._read_fleet,
            read_events=self._read_events,
            read_metrics=self._read_metrics,
            responses=self._background,
            spans=self._spans,
            echo_request_id=False,
            cors_origins=self._cors_origins,
            batches=self._batches,
            live=LiveSources(read_topic=self._read_topic, what_if=self._what_if),
            has_console=self._has_console,
            client_left=(TaskCancelledError,),  # of its call to Serve's proxy for the rest of a body
        )

    async def check_health(self) -> None:
        """Serve asks on the loop that serves: where that stands, none comes in time and Serve replaces the replica.
        What else a gateway waits for (units, the control loop) is no reason to.

        A new replica gets no request, and replaces no old one, before its first check has returned, for which Serve
        waits without a limit: it returns with the first view, without which a gateway can serve nobody, and with the
        conversations of those that go.
        """
        await self._gateway.view.first()
        await self._copies.join()  # no deadline: it has one itself
        await asyncio.sleep(0)  # through the loop, as a request

    async def routable_models(self) -> list[str]:
        """Returns what this replica could route now: a gateway follows the fleet by itself, a moment behind."""
        return self._gateway.routable_models()

    async def own_metrics(self, openmetrics: bool) -> OwnMetrics:
        metrics = self._gateway.metrics
        text = await asyncio.to_thread(metrics.own_text, openmetrics=openmetrics)
        return OwnMetrics(gateway=self._replica_id(), text=text, view_age_s=metrics.view_age_s())

    async def fleet_metrics(self, gateway: str, openmetrics: bool) -> bytes | None:
        """None from other replicas than the one asked for."""
        if gateway != self._replica_id():
            return None
        return await asyncio.to_thread(self._gateway.metrics.fleet_text, openmetrics=openmetrics)

    async def _read_metrics(self, openmetrics: bool) -> bytes:
        """Of all replicas: a scrape comes through a proxy, which sends it to any of them. If they do not answer, this
        one's own.
        """
        try:
            answers = await self._of_all_gateways("own_metrics", openmetrics)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("the gateways do not tell their metrics", extra={"reason": repr(error)})
            answers = ()
        told = {a.gateway: a for a in answers if isinstance(a, OwnMetrics)}
        own = told.get(self._replica_id()) or await self.own_metrics(openmetrics)
        told[own.gateway] = own
        by_gateway = {gateway: each.text for gateway, each in told.items()}
        fleet = await self._fleet_text(newest_view(own, told.values()), openmetrics)
        return await asyncio.to_thread(merged_exposition, by_gateway, fleet)

    async def _fleet_text(self, gateway: str, openmetrics: bool) -> bytes:
        with contextlib.suppress(RayError, RayServeException, TimeoutError):
            if gateway != self._replica_id():
                for answer in await self._of_all_gateways("fleet_metrics", gateway, openmetrics):
                    if isinstance(answer, bytes):
                        return answer
        return await asyncio.to_thread(self._gateway.metrics.fleet_text, openmetrics=openmetrics)

    def _replica_id(self) -> str:
        return serve.get_replica_context().replica_id.unique_id

    async def kept_response(self, response_id: str, owner: str) -> bytes | None:
        """The conversation up to that answer, if this replica gave it, for the sibling that got the next turn."""
        return self._responses.encoded(response_id, owner)

    async def _ask_siblings(self, response_id: str, owner: str) -> bytes | None:
        """Raises GatewaysSilent: no replica that answers has it, and one does not answer."""
        reason: Exception | None = None
        try:
            answers = await self._of_all_gateways("kept_response", response_id, owner)
        except (RayError, RayServeException, TimeoutError) as error:
            answers, reason = (), error
        for answer in answers:
            if isinstance(answer, Exception):
                reason = answer
        found = newest([answer for answer in answers if isinstance(answer, bytes)])
        if found is not None:
            return found
        if reason is not None:
            logger.warning("the gateways do not tell their responses", extra={"reason": repr(reason)})
            raise GatewaysSilent(response_id=response_id, retry_after_s=_RETRY_AFTER_S) from reason
        return None

    async def kept_responses(self) -> tuple[str, list[str]]:
        """Tells a new sibling what there is to take over."""
        return self._copies.kept()

    async def told_responses(self, wanted: Mapping[str, Sequence[str]]) -> list[bytes]:
        return self._copies.told(wanted)

    async def response_events(self, response_id: str, owner: str, after: int) -> tuple[list[bytes], bool] | None:
        return self._background.events_after(response_id, owner, after)

    async def take_background(self, handed: Sequence[HandedEvents]) -> list[bytes] | None:
        return self._background.handover.take(handed)

    async def end_answers(self, after_s: float) -> None:
        asyncio.get_running_loop().call_later(after_s, self._gateway.end_answers)

    async def take_responses(self, copies: Sequence[bytes]) -> None:
        self._copies.take(copies)

    async def _of_all_gateways(self, method: str, *arguments: object) -> Sequence[Any]:
        """Of each replica the answer, or the exception: one that has just died answers nothing. Raises RayError,
        RayServeException, TimeoutError where none can be asked.
        """
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                asked = (await self._siblings()).broadcast(method, *arguments)
                answers: list[Any] = await asked.results_async(return_exceptions=True)
        except (RayError, RayServeException, TimeoutError):
            self._gateways = None
            raise
        return answers

    async def _siblings(self) -> DeploymentHandle[Any]:
        if self._gateways is None:
            context = serve.get_replica_context()
            self._gateways = await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)
        return self._gateways

    async def _follow(self, gateway: Gateway) -> None:
        # Modules, schemas and routes outlive the replica: a full collection that went through them would hold every
        # stream for some 0.1 s.
        gc.collect()
        gc.freeze()
        async with asyncio.TaskGroup() as following:
            following.create_task(self._clock.live())
            following.create_task(self._follow_fleet(gateway))
            following.create_task(self._copies.follow(lambda: gateway.view.current.num_gateways))
            if self._read_keys is not None:
                following.create_task(self._follow_keys(gateway, self._read_keys))
                following.create_task(self._follow_usage(gateway))

    async def _follow_usage(self, gateway: Gateway) -> None:
        """Begins with what keys have left of their rates, and tells it from then on, for those that come later."""
        is_new = answering = True
        while True:
            told = None if is_new else gateway.access.usage()
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    asked = (await self._control_loop()).key_usage.remote(gateway.scheduler.gateway_id, told)
                    left: tuple[KeyUsage, ...] = await asked
            except Exception as error:  # as in following the fleet
                if answering:
                    logger.warning("control loop does not keep what API keys have used", extra={"reason": repr(error)})
                answering = False
            else:
                if is_new:
                    gateway.access.restore_usage(left)
                is_new, answering = False, True
            await asyncio.sleep(KEYS_POLL_S)

    async def _follow_keys(self, gateway: Gateway, read_keys: Callable[[], KeyRing]) -> None:
        """What cannot be read changes nothing: a slip in the file neither locks everybody out nor lets everybody in."""
        readable = True
        while True:
            await asyncio.sleep(KEYS_POLL_S)
            try:
                gateway.access.set_keys(await asyncio.to_thread(read_keys))
                readable = True
            except Exception as error:
                if readable:
                    logger.error("API keys not read; those known stay in force", extra={"reason": str(error)})
                readable = False

    async def _follow_fleet(self, gateway: Gateway) -> None:
        answering = True
        follower = FleetFollower(gateway, partial(self._ask, gateway), poll_s=POLL_S)
        while True:
            try:
                await follower.update_view()
            except Exception as error:  # whatever it is, following must go on: this loop is the gateway's only news
                if answering:
                    expected = isinstance(error, RayError | RayServeException | TimeoutError)
                    logger.warning(
                        "control loop does not answer; the last view stays",
                        extra={"reason": repr(error)},
                        exc_info=not expected,
                    )
                answering = False
                if not isinstance(error, RayTaskError):  # the next one may be of another release
                    self._news_refusals.clear()
                self._controller = None  # it may point to an application that was deleted and made again
            else:
                if not answering:
                    logger.info("control loop answers again")
                answering = True
            await asyncio.sleep(POLL_S)

    async def _read_decisions(self, unit: str, last: int) -> bytes | None:
        try:
            async with asyncio.timeout(_DECISIONS_TIMEOUT_S):
                body: bytes | None = await (await self._control_loop()).decisions.remote(unit, last)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("control loop does not tell a unit's decisions", extra={"unit": unit, "reason": repr(error)})
            return None
        return body

    async def _read_fleet(self, explain: str | None) -> bytes | None:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                body: bytes = await (await self._control_loop()).fleet_report.remote(explain)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("control loop does not tell the state of the fleet", extra={"reason": repr(error)})
            return None
        return body

    async def _read_events(self, since_s: float) -> bytes | None:
        try:
            async with asyncio.timeout(_DECISIONS_TIMEOUT_S):
                body: bytes = await (await self._control_loop()).events.remote(since_s)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("control loop does not tell the events of the fleet", extra={"reason": repr(error)})
            return None
        return body

    async def console_part(self, topic: str) -> bytes:
        """This replica's part of the topics `requests` and `keys`, as JSON: a sibling may be of another release."""
        if topic == "requests":
            return msgspec.json.encode(self._gateway.receipts.told())
        return msgspec.json.encode(self._gateway.access.figures(self._gateway.scheduler.waiting_tokens()))

    async def _read_topic(self, topic: str, about: Mapping[str, str]) -> bytes | None:
        if topic == "unit":
            return await self._read_decisions(about["unit"], _CONSOLE_DECISIONS)
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT_S):
                if topic in ("requests", "keys"):
                    return joined_parts(topic, await self._of_all_gateways("console_part", topic))
                body: bytes = await (await self._control_loop()).console.remote(topic, about)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("a topic of the console is not told", extra={"topic": topic, "reason": repr(error)})
            return None
        return body

    async def _what_if(self, changes: WhatIfChanges) -> bytes | None:
        try:
            async with asyncio.timeout(_WHAT_IF_TIMEOUT_S):
                body: bytes | None = await (await self._control_loop()).what_if.remote(changes)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("the planner does not answer a what-if", extra={"reason": repr(error)})
            return None
        return body

    async def _ask(
        self, gateway: Gateway, report: DemandReport, known: tuple[int, ...] | None, wait_s: float
    ) -> FleetNews:
        """A control loop of another release may fail over the question for news, or answer it otherwise."""
        if not self._news_refusals.is_plain_next():
            try:
                news = read_news(await self._told_news(gateway, report, known, wait_s))
            except (RayTaskError, msgspec.DecodeError) as error:
                if not self._news_refusals.has_some:
                    told = {"reason": repr(error)}
                    logger.warning("control loop tells no news; it is asked as one of an earlier release", extra=told)
                self._news_refusals.note()
                self._news_refusals.is_plain_next()
            else:
                self._news_refusals.clear()
                return news
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):  # wait_for of Python 3.11 can lose a cancellation
            return FleetNews(view=await (await self._control_loop()).fleet_view.remote(report), version=())

    async def _told_news(
        self, gateway: Gateway, report: DemandReport, known: tuple[int, ...] | None, wait_s: float
    ) -> bytes:
        events = gateway.events.fetch()
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S + wait_s):
                body: bytes = await (await self._control_loop()).told_news.remote(report, events, known, wait_s)
        except BaseException:
            gateway.events.give_back(events)
            raise
        return body

    async def _control_loop(self) -> DeploymentHandle[Any]:
        if self._controller is None:  # asks Serve and waits for its answer, which must not stop the event loop
            self._controller = await asyncio.to_thread(
                serve.get_deployment_handle, self._controller_deployment, self._controller_app
            )
        return self._controller
