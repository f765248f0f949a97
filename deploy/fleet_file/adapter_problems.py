"""Says what is wrong with a fleet file's LoRA adapters."""

from collections.abc import Iterator, Mapping, Sequence

from deploy.fleet_file.fleet_problems import Problem
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.yaml_source import KeyPath

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
