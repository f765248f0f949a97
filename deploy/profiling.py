"""Profiles of the models of a fleet on the engine of this machine, measured in one or several goes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from deploy.errors import OptionNotUsable, OutputNotWritable
from deploy.settings import FleetFile, PoolSection
from pdmux_actor.executor.base import Executor
from pdmux_actor.executor.probe import ExecutorProbe
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.executors import build_executor
from profiler.machine import machine_facts
from profiler.measuring import measure
from profiler.probe import Probe
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import read_profile, write_profile
from profiler.specs import DeviceSpec
from profiler.sweep import plan_sweep

_ENGINE = "native"
_SAVE_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToProfile:
    name: str
    source: str
    revision: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineToProfile:
    """An engine as a pool of the fleet file would start it. `cores` are for CPUs."""

    models: tuple[ModelToProfile, ...]
    kv_pool_bytes: int
    block_bytes: int
    cores: int | None
    max_batch_tokens: int
    max_sequences: int
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`launches` of `planned` are done, some of them earlier; of the launches of this run `too_long` were left out."""

    model: str
    planned: int
    launches: int
    too_long: int


def engine_of_fleet(fleet: FleetFile, pool_name: str | None) -> EngineToProfile:
    """Raises OptionNotUsable: no such pool, or none that this machine could be a node of."""
    pool = _pool(fleet, pool_name)
    engine = fleet.engine
    return EngineToProfile(
        models=tuple(
            ModelToProfile(name=m.id, source=m.source, revision=m.revision, dtype=m.dtype or engine.dtype)
            for m in fleet.models
        ),
        kv_pool_bytes=pool.kv_memory,
        block_bytes=engine.block_bytes,
        cores=pool.cores,
        max_batch_tokens=engine.max_batch_tokens,
        max_sequences=engine.max_running_sequences,
        device="cuda" if pool.device == "cuda" else "cpu",
    )


def profile_engine(
    engine: EngineToProfile, out: Path, *, budget_s: float, on_progress: Callable[[Progress], None]
) -> Profile:
    """Goes on where `out` ends, and saves every few seconds. The models share the time evenly.

    Raises:
        ModelLoadError: a checkpoint cannot be served.
        ProfileUnusable, OptionNotUsable: `out` exists and is no profile, or one of another machine.
        OutputNotWritable: `out` cannot be written.
        DeviceUnavailable: no GPU is here.
    """
    before = read_profile(out) if out.exists() else None
    executor = _open_executor(engine)
    try:
        profile = _begin(before, executor.device, out)
        started_s = time.perf_counter()
        for index, model in enumerate(engine.models):
            left_s = budget_s - (time.perf_counter() - started_s)
            share_s = max(0.0, left_s / (len(engine.models) - index))
            probe = ExecutorProbe(
                executor,
                model=model.name,
                source=model.source,
                revision=model.revision,
                dtype=model.dtype,
                max_batch_tokens=engine.max_batch_tokens,
                max_sequences=engine.max_sequences,
            )
            profile = _profile_model(profile, model.name, probe, out, share_s, on_progress)
            probe.close()
    finally:
        executor.close()
    return profile


def _open_executor(engine: EngineToProfile) -> Executor:
    return build_executor(
        EngineSettings(
            kind="torch_cuda" if engine.device == "cuda" else "torch_cpu",
            kv_pool_bytes=engine.kv_pool_bytes,
            block_bytes=engine.block_bytes,
            num_cores=engine.cores,
        ),
        None,
    )


def _profile_model(
    profile: Profile, name: str, probe: Probe, out: Path, budget_s: float, on_progress: Callable[[Progress], None]
) -> Profile:
    known = profile.models.get(name)
    rows = [] if known is None or known.spec != probe.spec else list(known.measurements)
    done = {(m.launch, m.beside) for m in rows}
    planned = plan_sweep(probe.limits)
    missing = [p for p in planned if (p.launch, p.beside) not in done]
    too_long, saved_s = 0, time.perf_counter()

    def current() -> Profile:
        return _with_model(profile, name, ModelProfile(spec=probe.spec, measurements=tuple(rows)))

    try:
        for measurement in measure(probe, missing, budget_s=budget_s, now=time.perf_counter):
            too_long += measurement is None
            if measurement is not None:
                rows.append(measurement)
            on_progress(Progress(model=name, planned=len(planned), launches=len(rows), too_long=too_long))
            if time.perf_counter() - saved_s > _SAVE_PERIOD_S:
                _save(current(), out)
                saved_s = time.perf_counter()
    finally:  # Ctrl-C too: the next run goes on from here
        if rows:
            _save(current(), out)
    return current()


def _begin(before: Profile | None, device: DeviceSpec, out: Path) -> Profile:
    facts = {**machine_facts(), "torch": version("torch")}
    if before is None:
        return Profile(engine=_ENGINE, device=device, num_gpus=1, machine=facts, models={})
    here = (_ENGINE, facts["processor"], device.num_sms)
    there = (before.engine, before.machine.get("processor"), before.device.num_sms)
    if here != there:
        was = f"{there[0]} on {there[2]} SMs or cores of {there[1]}"
        remedy = f"was measured with {was}, this is {here[0]} on {here[2]} of {here[1]}; name another file"
        raise OptionNotUsable(option="--out", value=out, remedy=remedy)
    return before


def _with_model(profile: Profile, name: str, model: ModelProfile) -> Profile:
    return replace(profile, models={**profile.models, name: model})


def _save(profile: Profile, out: Path) -> None:
    try:
        write_profile(profile, out)
    except OSError as error:
        raise OutputNotWritable(path=str(out), reason=error.strerror or str(error)) from error


def _pool(fleet: FleetFile, name: str | None) -> PoolSection:
    real = [pool for pool in fleet.pools if pool.device != "simulated" and fleet.backend(pool) == "native"]
    names = ", ".join(pool.name for pool in real) or "none"
    if name is not None:
        chosen = [pool for pool in real if pool.name == name]
        if not chosen:
            remedy = f"muxfleet's own engine on cpu and cuda pools can be measured; the fleet file has {names}"
            raise OptionNotUsable(option="--pool", value=name, remedy=remedy)
        return chosen[0]
    if not real:
        remedy = "none of its pools runs muxfleet's own engine on a cpu or a GPU; use --checkpoint"
        raise OptionNotUsable(option="FLEET", value=fleet.name, remedy=remedy)
    return real[0]
