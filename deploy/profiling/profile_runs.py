"""Profiles of the models of a fleet on the engine of this machine, measured in one or several goes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.profiling.profiled_engines import GPU_KV_BYTES, EngineToProfile, ModelToProfile, ProfiledEngine, open_engine
from deploy.profiling.saved_profile import save_profile
from profiler.machine import gpu_facts, machine_facts, source_version
from profiler.measuring import measure
from profiler.partition_rates import with_rates
from profiler.probe import Probe
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import read_profile
from profiler.specs import DeviceSpec
from profiler.sweep import plan_sweep

_SAVE_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingProgress:
    """`launches` of `planned` are done, some of them earlier; of the launches of this run `too_long` were left out."""

    model: str
    planned: int
    launches: int
    too_long: int


def engine_of_fleet(fleet: FleetFile, pool_name: str | None, backend: str | None) -> EngineToProfile:
    """Returns the engine of that pool, else of the first pool with that backend. Raises OptionNotUsable: there is
    none.
    """
    pool = _pool(fleet, pool_name, backend)
    if pool.mesh_gpus > 1 and fleet.backend(pool).name == "native":
        remedy = "muxfleet's own engine is measured on one device; set 1, or measure a pool with backend: sglang"
        raise OptionNotUsable(option=f"pool {pool.name}: mesh_gpus", value=str(pool.mesh_gpus), remedy=remedy)
    engine = fleet.engine
    return EngineToProfile(
        models=tuple(
            ModelToProfile(
                name=m.id, source=m.source, revision=m.revision, dtype=m.dtype or engine.dtype, weights=m.weights
            )
            for m in fleet.models
            if m.base is None
        ),
        kv_pool_bytes=int(pool.kv_bytes or GPU_KV_BYTES),
        block_bytes=int(engine.block_bytes),
        cores=pool.cores,
        max_batch_tokens=engine.max_batch_tokens,
        max_sequences=engine.max_running_sequences,
        device="cuda" if pool.device == "cuda" else "cpu",
        num_gpus=pool.mesh_gpus,
        gpu_type=pool.gpu_type,
        sglang=pool.sglang.options() if fleet.backend(pool).name == "sglang" else None,
    )


def profile_engine(
    engine: EngineToProfile, out: Path, *, budget_s: float, on_progress: Callable[[ProfilingProgress], None]
) -> Profile:
    """Goes on where `out` ends, and saves every few seconds. The models share the time evenly.

    Raises:
        ModelLoadError, EngineStartFailed: a checkpoint cannot be served.
        LaunchFailed: what was to be measured failed.
        ProfileUnusable, OptionNotUsable: `out` exists and is no profile, or one of another machine.
        OutputNotWritable: `out` cannot be written.
        DeviceUnavailable: no GPU is here.
    """
    before = read_profile(out) if out.exists() else None
    opened = open_engine(engine)
    try:
        profile = _with_rates(_begin(before, engine, opened.device, out), opened)
        started_s = time.perf_counter()
        for index, model in enumerate(engine.models):
            left_s = budget_s - (time.perf_counter() - started_s)
            share_s = max(0.0, left_s / (len(engine.models) - index))
            probe = opened.probe(model)
            profile = _profile_model(profile, model.name, probe, out, share_s, on_progress)
            probe.close()
    finally:
        opened.close()
    return profile


def _profile_model(
    profile: Profile,
    name: str,
    probe: Probe,
    out: Path,
    budget_s: float,
    on_progress: Callable[[ProfilingProgress], None],
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
            on_progress(ProfilingProgress(model=name, planned=len(planned), launches=len(rows), too_long=too_long))
            if time.perf_counter() - saved_s > _SAVE_PERIOD_S:
                save_profile(current(), out)
                saved_s = time.perf_counter()
    finally:  # Ctrl-C too: the next run goes on from here
        if rows:
            save_profile(current(), out)
    return current()


def _begin(before: Profile | None, engine: EngineToProfile, device: DeviceSpec, out: Path) -> Profile:
    facts = {**machine_facts(), "torch": version("torch"), "muxfleet": source_version()}
    if engine.device == "cuda":
        facts |= gpu_facts()
    if engine.sglang is not None:
        facts["sglang"] = _sglang_version()
    if before is None:
        return Profile(engine=engine.name, device=device, num_gpus=engine.num_gpus, machine=facts, models={})
    chip = "gpu" if engine.device == "cuda" else "processor"
    here = (engine.name, facts.get(chip), device.num_sms, engine.num_gpus)
    there = (before.engine, before.machine.get(chip), before.device.num_sms, before.num_gpus)
    if here != there:
        was, now = (f"{name} on {count} x {sms} SMs or cores of {on}" for name, on, sms, count in (there, here))
        remedy = f"was measured with {was}, this is {now}; name another file"
        raise OptionNotUsable(option="--out", value=out, remedy=remedy)
    return before


def _with_rates(profile: Profile, opened: ProfiledEngine) -> Profile:
    """A profile that goes on keeps the rates that it has."""
    rates = profile.partition_rates or opened.partition_rates()
    return replace(profile, partition_rates=rates, device=with_rates(profile.device, rates)) if rates else profile


def _with_model(profile: Profile, name: str, model: ModelProfile) -> Profile:
    return replace(profile, models={**profile.models, name: model})


def _sglang_version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError as error:
        remedy = "SGLang is not installed; docs/sglang.md has its environment"
        raise OptionNotUsable(option="--backend", value="sglang", remedy=remedy) from error


def _pool(fleet: FleetFile, name: str | None, backend: str | None) -> PoolSection:
    real = [p for p in fleet.pools if p.device != "simulated" and backend in (None, fleet.backend(p).name)]
    names = ", ".join(pool.name for pool in real) or "none"
    kind = "cpu and cuda pools" if backend is None else f"cpu and cuda pools with backend {backend}"
    if name is not None:
        chosen = [pool for pool in real if pool.name == name]
        if not chosen:
            remedy = f"{kind} can be measured; the fleet file has {names}"
            raise OptionNotUsable(option="--pool", value=name, remedy=remedy)
        return chosen[0]
    if not real:
        remedy = f"only {kind} can be measured, and it has none; name another file, or use --checkpoint"
        raise OptionNotUsable(option="FLEET", value=fleet.name, remedy=remedy)
    return real[0]
