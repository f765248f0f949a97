"""Says what is wrong with a fleet file, in lines a user can act on: what pydantic found, what settings contradict."""

import difflib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.section import WatchSection
from deploy.fleet_file.setting_types import PATTERN_REMEDIES
from deploy.fleet_file.yaml_source import KeyPath, YamlSource, path_text
from pdmux_actor.backends.registry import BACKENDS
from pdmux_actor.backends.sglang.options import QUANTISED_SGLANG, SglangOptions, option_problems
from profiler.devices import device_named
from profiler.errors import UnknownDevice
from profiler.specs import DeviceSpec

_MAX_VALUE_CHARS = 60

_REMEDIES: Mapping[str, str] = {
    "missing": "required, but missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string (put it in quotes)",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "greater_than": "must be greater than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "literal_error": "must be one of: {expected}",
    "dict_type": "must be a mapping of keys to values",
    "too_short": "needs at least {min_length} item",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "byte_size": "must be a size such as 256MiB",
    "byte_size_unit": "unknown unit {unit!r}; write a size such as 256MiB",
}
_NO_SECTION = ("model_type", "model_attributes_type")
_SURELY = 0.75  # so alike that the other keys need not be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`value` is None where there is none to show."""

    path: KeyPath
    value: object
    remedy: str

    def line(self, source: YamlSource) -> str:
        where = path_text(self.path) or "the file"
        shown = "" if self.value is None else f" = {_shown(self.value)}"
        return f"{source.place(self.path)}: {where}{shown}: {self.remedy}"


def problems_of(error: ValidationError, root: type[BaseModel]) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    for detail in details:
        path: KeyPath = tuple(detail["loc"])
        kind = detail["type"]
        if kind == "too_short" and any(d["loc"][: len(path)] == path and d is not detail for d in details):
            continue  # pydantic counts the valid items only; their own problems are listed
        if kind == "extra_forbidden":
            yield Problem(path=path, value=detail["input"], remedy=_unknown_key(path, root))
        elif kind == "missing":
            yield Problem(path=path, value=None, remedy=_REMEDIES["missing"])
        elif kind == "string_pattern_mismatch":
            yield Problem(path=path, value=detail["input"], remedy=_pattern_remedy(detail["ctx"]["pattern"]))
        elif kind in _NO_SECTION and path and detail["input"] is not None:
            yield Problem(
                path=path, value=detail["input"], remedy=f"{_REMEDIES[kind]}: {', '.join(_keys_at(path, root))}"
            )
        else:
            template = _REMEDIES.get(kind)
            remedy = template.format(**_context(detail.get("ctx"))) if template else str(detail["msg"])
            yield Problem(path=path, value=detail["input"], remedy=remedy)


def _context(ctx: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v.replace("'", "") if isinstance(v, str) else v for k, v in (ctx or {}).items()}


def _pattern_remedy(pattern: str) -> str:
    return PATTERN_REMEDIES.get(pattern, f"must match {pattern}")


def _unknown_key(path: KeyPath, root: type[BaseModel]) -> str:
    known = _keys_at(path[:-1], root)
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    if near and difflib.SequenceMatcher(None, str(path[-1]), near[0]).ratio() >= _SURELY:
        return f"unknown key; did you mean {near[0]}?"
    maybe = f"; did you mean {near[0]}?" if near else ";"
    return f"unknown key{maybe} known here: {', '.join(known)}"


def _keys_at(path: KeyPath, root: type[BaseModel]) -> Sequence[str]:
    section = root
    for part in path:
        if isinstance(part, str):
            section = _section_of(section.model_fields[part].annotation)
    return tuple(section.model_fields)


def _section_of(annotation: object) -> type[BaseModel]:
    """The section class inside `Section`, `tuple[Section, ...]` or `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section_of(a) for a in typing.get_args(annotation) if a is not Ellipsis)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


def repeated(values: list[str], section: str, key: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for i, value in enumerate(values):
        if value in first:
            remedy = f"also {section}[{first[value]}].{key}; choose another"
            problems.append(Problem(path=(section, i, key), value=value, remedy=remedy))
        first.setdefault(value, i)
    return problems


_OF_THE_BASE = ("dtype", "weights", "max_model_len")


def adapter_problems(models: Sequence[ModelSection], without_adapters: Sequence[str]) -> Iterator[Problem]:
    """`without_adapters`: pools whose units take none. Any of them may be given the base."""
    bases = {m.id: m.base for m in models}
    for i, model in enumerate(models):
        if model.base is not None or model.adapter is not None:
            yield from _problems(model, ("models", i), bases, without_adapters)


def _problems(
    model: ModelSection, path: KeyPath, bases: Mapping[str, str | None], without_adapters: Sequence[str]
) -> Iterator[Problem]:
    def refuse(key: str, value: object, remedy: str) -> Problem:
        return Problem(path=(*path, *key.split(".")), value=value, remedy=remedy)

    known = ", ".join(m for m, base in bases.items() if base is None and m != model.id)
    if model.base is None:
        yield refuse("adapter", model.adapter, "needs a base: name the model of this file that it was trained on")
    elif model.base not in bases:
        yield refuse("base", model.base, f"the fleet has no such model; it has {known}")
    elif bases[model.base] is not None or model.base == model.id:
        yield refuse("base", model.base, "is an adapter itself; name the model that both were trained on")
    if model.adapter is None:
        yield refuse("base", model.base, "is for adapters; write adapter: FOLDER beside it, or remove it")
    elif model.source != model.adapter:
        yield refuse("source", model.source, "an adapter's weights are its base's; remove it")
    for key in _OF_THE_BASE:
        if (value := getattr(model, key)) is not None:
            yield refuse(key, value, "an adapter has its base's; remove it")
    if model.replicas.max != 1:
        yield refuse("replicas.max", model.replicas.max, "an adapter is wherever its base is; set it on the base")
    for pool in without_adapters:
        reason = f"units of pool {pool!r} take no adapters (backend sglang, or mesh_gpus above 1 on cuda)"
        yield refuse(
            "base", model.base, f"{reason}, and may be given the base; serve it in a fleet without such a pool"
        )


Role = Literal["prefill", "decode"]


def role_problems(roles: Sequence[Role | None], moves_kv: Sequence[bool]) -> Iterator[Problem]:
    """Each has one entry per pool; `moves_kv`: KV of its units can go to other units, and come from there."""
    if not any(roles):
        return
    able = ", ".join(
        f"backend {name} on {' or '.join(entry.moves_kv_on)}" for name, entry in BACKENDS.items() if entry.moves_kv_on
    )
    wanting = {"prefill": "decode", "decode": "prefill"}
    for i, (role, moves) in enumerate(zip(roles, moves_kv, strict=True)):
        path = ("pools", i, "role")
        if role is None:
            remedy = "other pools have a role, and this one has none; set prefill or decode here, or remove theirs"
            yield Problem(path=path, value=None, remedy=remedy)
        elif not moves:
            remedy = f"KV of these units cannot be moved; only that of {able} with mesh_gpus 1; remove it"
            yield Problem(path=path, value=role, remedy=remedy)
        elif wanting[role] not in roles:
            remedy = f"no pool has role {wanting[role]}; give one that role, or remove this one"
            yield Problem(path=path, value=role, remedy=remedy)


def sglang_problems(
    options: SglangOptions,
    *,
    device: str,
    gpu_type: str | None,
    policy: str,
    weights: Sequence[str | None] = (),
    path: tuple[str | int, ...],
) -> Iterator[Problem]:
    """`path` is that of the pool; `device` and `gpu_type` are the pool's, `weights` those of the models."""
    for index, asked in enumerate(weights):
        if asked is not None:
            yield Problem(path=("models", index, "weights"), value=asked, remedy=QUANTISED_SGLANG)
    if device == "simulated":
        remedy = "a simulated device runs no SGLang; use backend: native"
        yield Problem(path=(*path, "backend"), value="sglang", remedy=remedy)
        return
    if device == "cuda" and gpu_type is None:
        remedy = "required for SGLang on cuda, to know its SMs; for example H200"
        yield Problem(path=(*path, "gpu_type"), value=None, remedy=remedy)
    if options.sleep and device != "cuda":
        remedy = "SGLang gives back memory of GPUs only; remove it, or set device: cuda"
        yield Problem(path=(*path, "sglang", "sleep"), value=True, remedy=remedy)
    if options.multiplexing == "auto" and device != "cuda":
        options = replace(options, multiplexing="off")
    for problem in option_problems(options, _device(gpu_type), policy):
        yield Problem(path=(*path, "sglang", *problem.field.split(".")), value=problem.value, remedy=problem.remedy)


def _device(gpu_type: str | None) -> DeviceSpec | None:
    """An unknown type is a problem of its own."""
    if gpu_type is None:
        return None
    try:
        return device_named(gpu_type)
    except UnknownDevice:
        return None


def opposed_settings(
    models: Sequence[ModelSection], watch: WatchSection, *, unit_suspect_s: float, unit_lost_s: float
) -> list[Problem]:
    """`unit_suspect_s` and `unit_lost_s` are the gateway's."""
    bounds: list[tuple[KeyPath, str, float, str, float]] = [
        *((("models", i, "replicas"), "max", m.replicas.max, "min", m.replicas.min) for i, m in enumerate(models)),
        (("engine", "watch"), "kill_s", watch.kill_s, "suspect_s", watch.suspect_s),
        (("gateway",), "unit_lost_s", unit_lost_s, "unit_suspect_s", unit_suspect_s),
    ]
    return [
        Problem(
            path=(*section, upper),
            value=most,
            remedy=f"smaller than {lower} ({least:.15g}); raise it or lower {lower}",
        )
        for section, upper, most, lower, least in bounds
        if most < least
    ]


def unknown_device(gpu_type: str) -> str | None:
    """The remedy; None for a device that the profiler knows."""
    try:
        device_named(gpu_type)
    except UnknownDevice as error:
        near = f"did you mean {error.nearest}? " if error.nearest else ""
        return f"unknown device; {near}known: {', '.join(error.known)}"
    return None


def without_weights(kv_bytes: int, device_bytes: int | None, gpu_type: str | None, mesh_gpus: int) -> str | None:
    """The remedy where KV takes all that a unit has, by its `device_bytes` or its GPUs; None where it has more, or
    nobody knows.
    """
    if device_bytes is not None:
        return "leaves no device_memory for weights; lower it" if kv_bytes >= device_bytes else None
    if gpu_type is None or unknown_device(gpu_type):
        return None
    unit_bytes = device_named(gpu_type).memory_bytes * mesh_gpus
    if kv_bytes < unit_bytes:
        return None
    return f"leaves nothing of the unit's memory for weights ({gpu_type}: {unit_bytes} bytes); lower it"
