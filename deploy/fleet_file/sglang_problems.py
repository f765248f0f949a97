"""Finds what a fleet file asks of SGLang and cannot be."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from deploy.fleet_file.fleet_problems import Problem
from pdmux_actor.backends.sglang.options import QUANTISED_SGLANG, SglangOptions, option_problems
from profiler.devices import device_named
from profiler.errors import UnknownDevice
from profiler.specs import DeviceSpec


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
