"""Compares the Serve configs of a running fleet and of a fleet file that is to be applied, by Serve's rules: `args`,
`ray_actor_options` and `max_replicas_per_node` restart what has them, one replica after the other; all else changes in
place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT, GATEWAY_APP, units_app

_RESTARTING = ("ray_actor_options", "max_replicas_per_node")
_UNSET = "unset"
_TOLD_OTHERWISE = frozenset({"name", "num_replicas", "user_config", *_RESTARTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """`in_place` lines say what changes without a restart, `restarts` what restarts or ends processes, `not_applied`
    what changes only when the fleet is started anew.
    """

    in_place: tuple[str, ...]
    restarts: tuple[str, ...]
    not_applied: tuple[str, ...] = ()


def change_between(running: Mapping[str, Any], wanted: Mapping[str, Any]) -> FleetChange:
    """Both by application name: what `serve deploy` takes."""
    both = [name for name in wanted if name in running]
    restarts = [line for name in both for line in _restarts(name, running[name], wanted[name])]
    restarts += [f"{_told(name)}: removed, they end" for name in sorted(running.keys() - wanted.keys())]
    in_place = [f"{_told(name)}: added" for name in wanted if name not in running]
    in_place += [line for name in both for line in _in_place(name, running[name], wanted[name])]
    return FleetChange(in_place=tuple(in_place), restarts=tuple(restarts))


def only_at_start(running: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Compares Serve's HTTP options, which do not change while it runs."""
    told = {key: value for key, value in wanted.items() if key in running}
    return tuple(f"gateway.{line}" for line in sorted(_differences({k: running[k] for k in told}, told, "")))


def _told(application: str) -> str:
    if application in (GATEWAY_APP, CONTROL_APP):
        return {GATEWAY_APP: "the gateways", CONTROL_APP: "the control loop"}[application]
    return f"the units of pool {application.removeprefix(units_app(''))}"


def _restarts(name: str, running: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    changed = [*_differences(running.get("args", {}), wanted.get("args", {}), "")]
    before = {d["name"]: d for d in running.get("deployments", ())}
    for deployment in wanted["deployments"]:
        old = before.get(deployment["name"], {})
        for option in _RESTARTING:
            changed += _differences(old.get(option), deployment.get(option), option)
    if changed:
        yield f"{_told(name)}, one after the other: {', '.join(sorted(changed))}"


def _in_place(name: str, running: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    before = {d["name"]: d for d in running.get("deployments", ())}
    for deployment in wanted["deployments"]:
        old = before.get(deployment["name"], {})
        if old.get("num_replicas") != deployment.get("num_replicas"):
            yield f"{_told(name)}: {old.get('num_replicas')} -> {deployment.get('num_replicas')} replicas"
        one, other = ({k: v for k, v in d.items() if k not in _TOLD_OTHERWISE} for d in (old, deployment))
        yield from (f"{_told(name)}: {line}" for line in sorted(_differences(one, other, "")))
        if deployment["name"] == CONTROLLER_DEPLOYMENT:
            yield from _catalog(old.get("user_config") or {}, deployment["user_config"])


def _catalog(running: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    old = {m["id"]: m for m in running.get("models", ())}
    new = {m["id"]: m for m in wanted["models"]}
    for model in sorted(old.keys() | new.keys()):
        if model not in old:
            yield f"model {model}: added"
        elif model not in new:
            yield f"model {model}: removed"
        elif changed := sorted(_differences(old[model], new[model], "")):
            yield f"model {model}: {', '.join(changed)}"
    told = ("models", "hold_s", "expected_units")  # the second with the gateways, the third with the units of each pool
    rest = [{k: v for k, v in config.items() if k not in told} for config in (running, wanted)]
    yield from sorted(_differences(rest[0], rest[1], ""))


def _differences(old: object, new: object, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old.keys() | new.keys():
            yield from _differences(old.get(key, _UNSET), new.get(key, _UNSET), f"{path}.{key}" if path else str(key))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{i}]")
    elif old != new:
        yield f"{path} {old} -> {new}"
