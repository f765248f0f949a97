"""The fleet as it changes, for consoles and `muxfleet top`: one stream of server-sent events, admins only."""

import math
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass

import msgspec
from fastapi import FastAPI
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from router.errors import InvalidRequest, PlannerBusy, UnitNotFound
from router.http.generation_endpoint import body_of_request
from router.http.live_feed import EVERY_S, LiveFeed, LiveTopic, ReadTopic
from router.http.streaming import EventStream, EventStyle
from router.serving.gateway import Gateway
from router.what_if import OtherTargets, WhatIfChanges

WhatIf = Callable[[WhatIfChanges], Awaitable[bytes | None]]
"""What the planner would do, as JSON; None when it does not answer now."""

_ABOUT: Mapping[str, tuple[str, ...]] = {"fleet": ("pool", "model", "find"), "unit": ("unit",)}
_MAX_NAME = 256
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSources:
    read_topic: ReadTopic
    what_if: WhatIf


def add_live_routes(app: FastAPI, gateway: Gateway, sources: LiveSources) -> None:
    feed = LiveFeed(sources.read_topic)

    @app.get("/fleet/live", include_in_schema=False)
    async def live(request: Request) -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        topics = _topics(request.query_params)
        _check_units(gateway, topics)
        feed.check_room()
        return EventStream(
            feed.events(topics),
            request_id=request.state.request_id,
            keep_alive_s=gateway.limits.keep_alive_s,
            write_timeout_s=gateway.limits.write_timeout_s,
            headers={},
            style=EventStyle(done=b""),
        )

    @app.post("/fleet/what-if", include_in_schema=False)
    async def what_if(request: Request) -> Response:
        gateway.access.check_admin(gateway.access.identify(request.headers))
        changes = changes_of_body(await body_of_request(request, gateway), gateway)
        body = await sources.what_if(changes)
        if body is None:
            raise PlannerBusy(retry_after_s=_RETRY_AFTER_S)
        return Response(body, media_type="application/json")


def _topics(asked: QueryParams) -> list[LiveTopic]:
    """Raises InvalidRequest."""
    names = list(dict.fromkeys(asked.getlist("topic")))
    if not names:
        raise InvalidRequest(f"topic is missing: send one or more of {', '.join(EVERY_S)}.", param="topic")
    for name in names:
        if name not in EVERY_S:
            message = f"topic {name[:40]!r} is none: send one or more of {', '.join(EVERY_S)}."
            raise InvalidRequest(message, param="topic")
    about = {key: value for key, value in asked.items() if key != "topic"}
    known = {key for name in names for key in _ABOUT.get(name, ())}
    for key, value in about.items():
        if key not in known:
            raise InvalidRequest(f"Nothing of {', '.join(names)} is asked by {key[:40]!r}: leave it out.", param=key)
        if len(value) > _MAX_NAME:
            raise InvalidRequest(f"{key} is longer than {_MAX_NAME} characters.", param=key)
    return [LiveTopic(name, tuple((k, about[k]) for k in sorted(_ABOUT.get(name, ())) if k in about)) for name in names]


def _check_units(gateway: Gateway, topics: list[LiveTopic]) -> None:
    """Raises InvalidRequest, UnitNotFound."""
    for topic in topics:
        if topic.name != "unit":
            continue
        unit = dict(topic.about).get("unit")
        if unit is None:
            raise InvalidRequest("topic unit needs a unit: send unit=ID.", param="unit")
        if unit not in {u.report.unit_id for u in gateway.known_view().current.units}:
            raise UnitNotFound(unit=unit)


_MAX_RATE_PER_S = 1e6
_MAX_TARGET_S = 3600.0
_MAX_NODES = 1024


class _Targets(msgspec.Struct, forbid_unknown_fields=True):
    ttft_s: float | None = None
    tbt_s: float | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    rates: dict[str, float] = {}
    targets: dict[str, _Targets] = {}
    nodes: dict[str, int] = {}


def changes_of_body(body: bytes, gateway: Gateway) -> WhatIfChanges:
    """Raises InvalidRequest, ModelNotFound."""
    try:
        asked = msgspec.json.decode(body, type=_Body)
    except msgspec.DecodeError as error:
        message = (
            'The body is not {"rates": {MODEL: requests per second}, "targets": {MODEL: {"ttft_s": seconds, "tbt_s": '
            f'seconds}}}}, "nodes": {{POOL: how many}}}}: {error}.'
        )
        raise InvalidRequest(message) from error
    if not (asked.rates or asked.targets or asked.nodes):
        raise InvalidRequest("Nothing would be other: send rates, targets or nodes.", param="rates")
    for model in (*asked.rates, *asked.targets):
        gateway.card(model)
    _check_rates(asked.rates)
    _check_targets(asked.targets)
    _check_nodes(asked.nodes, {u.report.pool for u in gateway.known_view().current.units})
    targets = {m: OtherTargets(ttft_s=t.ttft_s, tbt_s=t.tbt_s) for m, t in asked.targets.items()}
    return WhatIfChanges(rates=asked.rates, targets=targets, nodes=asked.nodes)


def _check_rates(rates: Mapping[str, float]) -> None:
    for model, rate in rates.items():
        if not (math.isfinite(rate) and 0 <= rate <= _MAX_RATE_PER_S):
            message = f"rates of {model!r} is {rate}: send requests per second from 0 to {_MAX_RATE_PER_S:.0f}."
            raise InvalidRequest(message, param="rates")


def _check_targets(targets: Mapping[str, _Targets]) -> None:
    for model, asked in targets.items():
        named = {"ttft_s": asked.ttft_s, "tbt_s": asked.tbt_s}
        if all(target_s is None for target_s in named.values()):
            raise InvalidRequest(f"targets of {model!r} has none: send ttft_s, tbt_s or both.", param="targets")
        for name, target_s in named.items():
            if target_s is not None and not (math.isfinite(target_s) and 0 < target_s <= _MAX_TARGET_S):
                message = f"{name} of {model!r} is {target_s}: send seconds above 0, to {_MAX_TARGET_S:.0f}."
                raise InvalidRequest(message, param="targets")


def _check_nodes(nodes: Mapping[str, int], pools: Set[str]) -> None:
    for pool, number in nodes.items():
        if pool not in pools:
            known = ", ".join(sorted(pools)) or "none has a unit now"
            raise InvalidRequest(f"nodes names {pool!r}, which is no pool: send one of {known}.", param="nodes")
        if not 1 <= number <= _MAX_NODES:
            raise InvalidRequest(f"nodes of {pool!r} is {number}: send 1 to {_MAX_NODES}.", param="nodes")
