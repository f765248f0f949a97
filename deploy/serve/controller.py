"""The control loop as a Serve deployment: units and gateways call it; it calls a unit only when a person asks."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from deploy.control.control_loop import ControlLoop
from deploy.control.control_rules import rules_of
from deploy.control.cordons import Cordon, Cordons, CordonScope
from deploy.control.fleet_costs import FleetCosts
from deploy.control.fleet_status import FleetStatus
from deploy.control.flight_log import FlightLog
from deploy.control.flight_recorder import FlightRecorder
from deploy.control.key_usages import KeyUsages
from deploy.control.planner import PlanAnswer, Planner, PlanTask
from deploy.control.scaled_pools import readable_seasons, scaled_pools
from deploy.fleet_file.model_catalog import Catalog
from deploy.planning.planner_process import PlannerProcess, plan_once
from deploy.planning.profiled_costs import readable_costs
from deploy.serve.console_topics import ConsoleTopics
from deploy.serve.controller_config import ControllerConfig
from deploy.serve.kept_state import KeptState, kept_state
from deploy.serve.lease_server import LeaseServer
from deploy.serve.model_shapes import ModelShapes
from deploy.serve.ray_cluster import ClusterLeadership, Leadership, going_nodes, node_host, own_node, stream_token
from deploy.serve.serve_calls import check_serve_answers, tell_of_silence
from deploy.serve.unit_calls import read_decisions
from deploy.serve.unit_replicas import UnitReplicas
from deploy.serve.waiting_gateways import NewsCopies, WaitingGateways
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.control_link import ControlAddress
from placement.errors import ModelUnknown
from placement.scaling.seasonal_forecast import Season
from router.access.rate_limits import KeyUsage
from router.admission.demand_report import DemandReport
from router.lived_clock import LivedClock
from router.telemetry.fleet_event import EventKind, FleetEvent
from router.view import FleetNews, FleetView
from router.what_if import WhatIfChanges

logger = logging.getLogger(__name__)

_KEEP_EVERY_S = 2.0
_NODES_POLL_S = 1.0
_SIZES_POLL_S = 0.5
_LEADERSHIP_POLL_S = 1.0  # well below the seconds that a fresh control loop waits for units
_LEFT_S = 3.0

ReadDecisions = Callable[[str, str, int], Awaitable[bytes | None]]
"""Pool, unit id, how many."""

PlannerFor = Callable[[str, Mapping[str, str]], Planner]
"""By the solver's name and the files of profiles, by pool."""

PlanOnce = Callable[[PlanTask, str, Mapping[str, str]], Awaitable[PlanAnswer]]
"""By a solver of that name and the files of profiles, by pool; raises TimeoutError."""


class Controller:
    """Holds nothing that a restart loses: units report what they serve, the catalog comes as `user_config`, the stream
    token lies in the cluster's key-value store, and what was decided and learned in a store of its own.
    """

    def __init__(
        self,
        token: str | None = None,
        read_decisions: ReadDecisions = read_decisions,
        start_log: Callable[[], None] = lambda: None,
        planner_for: PlannerFor | None = None,
        going_nodes: Callable[[], frozenset[str]] = going_nodes,
        plan_once: PlanOnce = plan_once,
        check_serve_answers: Callable[[], None] = check_serve_answers,
        host: Callable[[], str] = node_host,
        leadership: Leadership | None = None,
        clock: LivedClock | None = None,
    ) -> None:
        start_log()
        self._leadership = leadership or ClusterLeadership()
        self._going_nodes = going_nodes
        self._check_serve_answers = check_serve_answers
        self._plan_once = plan_once
        self._following: tuple[asyncio.Task[None], ...] = ()
        self._replicas = UnitReplicas()
        self._read_decisions = read_decisions
        self._planner_for = planner_for or PlannerProcess().using
        self._clock = clock or LivedClock()
        self._recorder = FlightRecorder(self._clock.epoch_s)
        self._log = FlightLog()
        self._usages = KeyUsages()
        token = stream_token() if token is None else token
        self._loop = ControlLoop(
            stream_token=token,
            # Milliseconds outrun the versions that any predecessor can have given out.
            first_version=int(time.time() * 1000),
            started_s=self._clock.now_s(),
            recorder=self._recorder,
            epoch_s=self._clock.epoch_s,
            stood_s=self._clock.stood_s,
        )
        self._loop.scaling.own_node = own_node()
        self._console = ConsoleTopics(self._loop, self._plan_trial, self._clock.now_s)
        self._state: KeptState | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._waiting = WaitingGateways(self._loop, self._clock.now_s)
        self._lease_server = LeaseServer(token, self._heard, host)
        self._news = NewsCopies()
        self._is_followed = False
        self._asked_stood_s = self._clock.stood_s()  # when it was asked last whether another one has come
        self._newest_lease = 0
        self._heard_s = float("-inf")
        self._config: ControllerConfig | None = None
        self._profiles: Mapping[str, str] = {}
        self._costs = FleetCosts()
        self._seasons: Mapping[str, Season] = {}
        self._created_s: dict[str, int] = {}
        self._shapes = ModelShapes(self._apply)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        config = ControllerConfig.model_validate(user_config)
        profiles = config.profiles or {}
        if profiles != self._profiles:
            self._profiles, self._costs = profiles, await asyncio.to_thread(readable_costs, profiles)
        self._seasons = await asyncio.to_thread(readable_seasons, config.pools or {}, config.models)
        self._config = config
        await self._follow_state(config)
        if is_first := not self._following:
            await asyncio.to_thread(self._leadership.take)
            watching = tell_of_silence(self._check_serve_answers, self._recorder.record, self._clock.now_s)
            follow = (
                self._follow_nodes(),
                self._scale_pools(),
                self._follow_leadership(),
                watching,
                self._clock.live(),
            )
            self._following = tuple(asyncio.create_task(task) for task in follow)
        self._shapes.follow(config.models, config.dtype)
        self._apply()
        await self._shapes.read_quickly()
        if is_first:
            self._loop.open_to_units(self._clock.now_s())

    async def check_health(self) -> None:
        """Runs on the loop that hears units and gateways: Serve replaces a control loop on which it does not return.
        Until then units keep their leases and gateways their view.
        """

    async def lease_stream(self) -> ControlAddress:
        """Returns where units tell their heartbeats. Raises OSError: nowhere; `heartbeat` takes them, too."""
        return await self._lease_server.address()

    async def heartbeat(self, report: UnitReport) -> Lease:
        """Hears units that have no stream: of an earlier release, or behind a firewall. Raises ConnectionRefusedError:
        the next control loop leads this one, which Serve still sends here now and then.
        """
        if self._is_followed and report.lease_version > self._newest_lease:
            raise ConnectionRefusedError("another control loop leads this unit")
        return self._heard(report)

    def _heard(self, report: UnitReport) -> Lease:
        now_s = self._clock.now_s()
        self._heard_s = now_s
        lease = self._loop.heartbeat(report, now_s)
        self._newest_lease = max(self._newest_lease, lease.version)
        self._recorder.heard(now_s, report, lease)
        self._waiting.look()
        return lease

    async def is_settled(self, unit_id: str) -> bool:
        """Says whether nothing is to change on the unit: units ask when they start, and when they are told to go."""
        return self._loop.is_settled(unit_id, self._clock.now_s())

    async def fleet_view(self, asked: DemandReport | None = None, events: tuple[FleetEvent, ...] = ()) -> FleetView:
        """`asked` is what clients asked the calling gateway for, `events` what went wrong with requests since it asked
        last. Waits while a fresh control loop may not have heard of all units: its callers keep what they know.
        """
        if asked is not None:
            self._loop.hear_demand(asked, self._clock.now_s())
        return await self._view(events)

    async def told_news(
        self, asked: DemandReport, events: tuple[FleetEvent, ...], known: tuple[int, ...] | None, wait_s: float
    ) -> bytes:
        """Answers as `fleet_view`, once there are other news than those of version `known`; after `wait_s` at the
        latest. `router.view.read_news` reads it.
        """
        self._loop.hear_demand(asked, self._clock.now_s())
        version = await self._waiting.until_news(asked.gateway_id, known, wait_s)
        body = self._news.copy_for(known)
        if body is None:
            return self._news.copied(FleetNews(view=await self._view(events), version=version))
        self._recorder.take(events)
        return body

    async def _view(self, events: tuple[FleetEvent, ...]) -> FleetView:
        while (view := self._loop.fleet_view(self._clock.now_s())) is None:
            await self._waiting.until_view()
        self._recorder.take(events)  # a caller that has given up waiting brings them again
        return replace(view, events=self._recorder.counts(), load_times=self._recorder.load_times())

    async def key_usage(self, gateway_id: str, told: tuple[KeyUsage, ...] | None) -> tuple[KeyUsage, ...]:
        """Takes what API keys have left of the gateway's part of their rates. `told` None: it has just begun, and is
        told what they have left of the fleet's.
        """
        if told is None:
            return self._usages.left(time.time())
        self._usages.tell(gateway_id, told, time.time())
        return ()

    async def events(self, since_s: float) -> bytes:
        """The FleetEvents of the last `since_s` seconds as JSON, oldest first."""
        self._log.add(self._recorder.fetch())
        return msgspec.json.encode(self._log.since(time.time() - since_s))

    async def status(self) -> FleetStatus:
        problem = "" if self._state is None else self._state.problem
        return replace(self._loop.status(self._clock.now_s()), state_problem=problem)

    async def fleet_report(self, explain: str | None = None) -> bytes:
        """The FleetStatus as JSON, or the Explanation of a model: null for one that is not planned for."""
        if explain is None:
            return msgspec.json.encode(await self.status())
        try:
            return msgspec.json.encode(self._loop.explain(explain, self._clock.now_s()))
        except ModelUnknown:
            return msgspec.json.encode(None)

    async def console(self, topic: str, about: Mapping[str, str]) -> bytes:
        """Returns what consoles follow, as JSON: see ConsoleTopics."""
        return self._console.told(topic, about)

    async def what_if(self, changes: WhatIfChanges) -> bytes | None:
        """Returns what other demand, targets or nodes would change, as JSON (ConsoleTopics); null where a model is not
        planned for.
        """
        try:
            return await self._console.what_if(changes)
        except ModelUnknown:
            return msgspec.json.encode(None)

    async def _plan_trial(self, task: PlanTask) -> PlanAnswer:
        assert self._config is not None, "Serve configures a replica before it serves"
        return await self._plan_once(task, self._config.placement.solver, self._profiles)

    async def cordon(self, cordon: Cordon) -> Mapping[str, str]:
        """Puts a cordon in force, unless it drains models that no other unit can hold and is not forced: then nothing
        changes, and the answer says which and why. Raises TimeoutError: no plan for the rest was found in time;
        ConnectionRefusedError: the next control loop leads the units, and would not hear of it.
        """
        if cordon.drains and not cordon.is_forced:
            answer = await self._plan_trial(self._loop.trial_task(cordon, self._clock.now_s()))
            if homeless := self._loop.homeless_after(cordon, answer.solution.plan):
                return homeless
        await self._ask_who_leads()
        does = "drained" if cordon.drains else "cordoned"
        self._set_cordons(self._loop.cordons.having(cordon), f"{cordon.scope} {cordon.name} is {does}")
        return {}

    async def uncordon(self, scope: CordonScope, name: str) -> bool:
        """False: there was no cordon. Raises ConnectionRefusedError as `cordon` does."""
        await self._ask_who_leads()
        cordons = self._loop.cordons.without(scope, name)
        if cordons == self._loop.cordons and not self._is_left():
            return False
        self._set_cordons(cordons, f"{scope} {name} is uncordoned")
        return True

    def _set_cordons(self, cordons: Cordons, why: str) -> None:
        if self._is_left():
            raise ConnectionRefusedError("another control loop leads the units")
        self._loop.set_cordons(cordons, why)
        self._keep_now()
        if self._state is not None and self._loop.state(self._clock.now_s()) is None:
            self._state.keep_cordons(cordons)

    async def _follow_nodes(self) -> None:
        """Ray's notices of nodes that go: of a spot node, of a pod that is deleted."""
        answering = True
        while True:
            try:
                self._loop.set_going_nodes(await asyncio.to_thread(self._going_nodes))
                answering = True
            except Exception as error:  # Ray's client raises what it likes; the fleet goes on without its notices
                if answering:
                    logger.warning("Ray does not tell which nodes it drains", extra={"reason": repr(error)})
                answering = False
            await asyncio.sleep(_NODES_POLL_S)

    async def _follow_leadership(self) -> None:
        """Units go to the next control loop when it is there: a stream would keep them with the one that Serve ends."""
        while True:
            await asyncio.sleep(_LEADERSHIP_POLL_S)
            try:
                await self._ask_who_leads()
                if self._is_followed:
                    logger.info("another control loop has come: units are sent there")
                    return self._lease_server.close()
            except Exception as error:  # Ray's client raises what it likes; it is asked again
                logger.debug("Ray does not tell who leads", extra={"reason": repr(error)})

    async def _ask_who_leads(self) -> None:
        """Raises what Ray's client raises."""
        stood_s = self._clock.stood_s()
        if await asyncio.to_thread(self._leadership.is_taken_over):
            self._is_followed = True
            if stood_s != self._asked_stood_s:  # units went there meanwhile
                self._heard_s = float("-inf")
        self._asked_stood_s = stood_s

    def _is_left(self) -> bool:
        """Units are with the next control loop: what is wanted of Serve and the store is what that one wants. Where it
        does not come up, they come back here by Serve's calls. Who stood does not know before he has asked.
        """
        stood = self._clock.stood_s() != self._asked_stood_s
        return self._clock.now_s() - self._heard_s > _LEFT_S if self._is_followed else stood

    async def _scale_pools(self) -> None:
        """Serve runs as many units as are wanted, as soon as it answers."""
        answering = True
        while True:
            await asyncio.sleep(_SIZES_POLL_S)
            if not self._loop.scaling.is_elastic or self._is_left():
                continue
            try:
                await asyncio.to_thread(self._replicas.follow, self._loop.scaling.states())
                answering = True
            except Exception as error:  # Ray's client raises what it likes; it is asked again
                if answering:
                    logger.warning("Serve does not take the number of units", extra={"reason": repr(error)})
                answering = False

    async def decisions(self, unit_id: str, last: int) -> bytes | None:
        """A LogExcerpt as JSON: what the unit decided lately. None when there is no such unit or it does not answer."""
        pools = [u.report.pool for u in (await self.status()).units if u.report.unit_id == unit_id]
        return await self._read_decisions(pools[0], unit_id, last) if pools else None

    async def _follow_state(self, config: ControllerConfig) -> None:
        """A store that was changed gets the state of now, and all events."""
        if self._state is not None and self._state.is_of(config.name, config.state):
            return
        before, tell = self._state, self._recorder.record
        self._state = kept_state(config.name, config.state, self._clock, tell, after=before)
        if before is None:
            await asyncio.to_thread(self._state.load_events, self._log)
            usage = await asyncio.to_thread(self._state.load_usage)
            if usage is not None:
                self._usages.restore(usage, time.time())
            restored = await asyncio.to_thread(self._state.load)
            if restored is not None:
                self._loop.take_over(restored)
            elif (cordons := await asyncio.to_thread(self._state.load_cordons)).entries:
                self._loop.set_cordons(cordons, "cordons are still in force")
            text = "with nothing kept" if restored is None else "goes on where the one before ended"
            self._recorder.record(self._clock.now_s(), EventKind.CONTROLLER_STARTED, text)
        else:
            self._log.renew()
            await asyncio.to_thread(before.close)
        self._keeping = self._keeping or asyncio.create_task(self._keep_state())

    async def _keep_state(self) -> None:
        is_kept = True
        while True:
            await asyncio.sleep(_KEEP_EVERY_S)
            try:
                if not self._is_left():
                    self._keep_now()
                is_kept = True
            except Exception:  # a bug of ours would else end the keeping for good, and nobody would be told
                if is_kept:
                    logger.exception("state cannot be written; the control loop goes on without")
                is_kept = False

    def _keep_now(self) -> None:
        self._log.add(self._recorder.fetch())
        if self._state is None:
            return
        self._state.keep_events(self._log)
        self._state.keep_usage(self._usages.kept(time.time()))
        if (state := self._loop.state(self._clock.now_s())) is not None:
            self._state.keep(state)

    def _apply(self) -> None:
        assert self._config is not None
        now_s = int(time.time())
        self._created_s = {m.id: self._created_s.get(m.id, now_s) for m in self._config.models}
        models = tuple(self._shapes.catalog_model(m, self._created_s[m.id]) for m in self._config.models)
        self._loop.set_catalog(
            Catalog(models=models, policy=self._config.policy),
            expected_units=self._config.expected_units,
            planner=self._planner_for(self._config.placement.solver, self._profiles),
            costs=self._costs,
            rules=rules_of(self._config.placement, hold_s=self._config.hold_s),
            scaling=scaled_pools(self._config.pools or {}, self._seasons),
        )
        self._waiting.look()
