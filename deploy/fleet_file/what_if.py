"""Changes to a fleet file in one line: `nodes=+1,rate.assistant=x2`."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.settings import FleetFile, PoolSection, semantic_problems
from deploy.fleet_file.yaml_source import path_text

T = TypeVar("T")

_SYNTAX = "write nodes[.POOL]=N|+N|-N|xN, rate[.MODEL]=R|+R|-R|xR or replicas[.MODEL]=N (the most), separated by commas"


def changed_fleet(fleet: FleetFile, changes: str) -> FleetFile:
    """Raises OptionNotUsable: with the part that cannot be used."""
    for change in changes.split(","):
        key, separator, amount = change.strip().rpartition("=")
        subject, _, name = key.partition(".")
        if not separator or not amount:
            raise _unusable(change, _SYNTAX)
        match subject:
            case "nodes":
                fleet = _with_pools(fleet, name, change, amount)
            case "rate" | "replicas":
                fleet = _with_models(fleet, name, change, amount, subject)
            case _:
                raise _unusable(change, _SYNTAX)
        for problem in semantic_problems(fleet):
            raise _unusable(change, f"{path_text(problem.path)} = {problem.value}: {problem.remedy}")
    return fleet


def changes_nodes(changes: str) -> bool:
    return any(change.strip().partition("=")[0].partition(".")[0] == "nodes" for change in changes.split(","))


def told_changes(before: FleetFile, after: FleetFile) -> Iterator[str]:
    """Returns what `changed_fleet` has made of a fleet."""
    for pool, changed in zip(before.pools, after.pools, strict=True):
        if pool.nodes.min != changed.nodes.min:
            yield f"nodes.{pool.name} {pool.nodes.min} -> {changed.nodes.min}"
    for model, asked in zip(before.models, after.models, strict=True):
        if model.demand.rate_per_s != asked.demand.rate_per_s:
            yield f"rate.{model.id} {model.demand.rate_per_s:g} -> {asked.demand.rate_per_s:g}"
        if model.replicas.max != asked.replicas.max:
            yield f"replicas.{model.id} {model.replicas.max} -> {asked.replicas.max}"


def _with_pools(fleet: FleetFile, name: str, change: str, amount: str) -> FleetFile:
    _check_name(name, [p.name for p in fleet.pools], change, "pool")

    def grown(pool: PoolSection) -> PoolSection:
        nodes = round(_applied(amount, pool.nodes.min, change))
        if nodes < 1:
            raise _unusable(change, f"pool {pool.name!r} would have {nodes} nodes; leave at least 1")
        return pool.model_copy(
            update={"nodes": pool.nodes.model_copy(update={"min": nodes, "max": nodes}), "scaling": None}
        )

    return fleet.model_copy(update={"pools": _each(fleet.pools, name, lambda p: p.name, grown)})


def _with_models(fleet: FleetFile, name: str, change: str, amount: str, subject: str) -> FleetFile:
    _check_name(name, [m.id for m in fleet.models], change, "model")

    def asked(model: ModelSection) -> ModelSection:
        if subject == "rate":
            rate = _applied(amount, model.demand.rate_per_s, change)
            if rate < 0:
                raise _unusable(change, f"model {model.id!r} would have {rate:g} requests/s; leave at least 0")
            return model.model_copy(update={"demand": model.demand.model_copy(update={"rate_per_s": rate})})
        most = round(_applied(amount, model.replicas.max, change))
        if most < model.replicas.min:
            raise _unusable(change, f"model {model.id!r} must have {model.replicas.min} replicas; allow as many")
        return model.model_copy(update={"replicas": model.replicas.model_copy(update={"max": most})})

    return fleet.model_copy(update={"models": _each(fleet.models, name, lambda m: m.id, asked)})


def _each(parts: Sequence[T], name: str, name_of: Callable[[T], str], change: Callable[[T], T]) -> tuple[T, ...]:
    """Without a name all of them."""
    return tuple(change(part) if name in ("", name_of(part)) else part for part in parts)


def _applied(amount: str, before: float, change: str) -> float:
    sign, number = (amount[0], amount[1:]) if amount[0] in "+-x" else ("", amount)
    try:
        value = float(number)
    except ValueError as error:
        raise _unusable(change, _SYNTAX) from error
    if not math.isfinite(value):
        raise _unusable(change, "give a finite number")
    after = {"+": before + value, "-": before - value, "x": before * value}.get(sign, value)
    if not math.isfinite(after):
        raise _unusable(change, "gives no finite number")
    return after


def _check_name(name: str, known: Sequence[str], change: str, noun: str) -> None:
    if name and name not in known:
        raise _unusable(change, f"the fleet has no {noun} {name!r}; it has {', '.join(known)}")


def _unusable(change: str, remedy: str) -> OptionNotUsable:
    return OptionNotUsable(option="--what-if", value=change, remedy=remedy)
