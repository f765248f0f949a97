"""Reads the body of a what-if."""

import math
from collections.abc import Mapping, Set

import msgspec

from router.errors import InvalidRequest
from router.serving.gateway import Gateway
from router.what_if import OtherTargets, WhatIfChanges

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
