"""Profiles put together from published tables of operators: launches that were timed in parts, on a GPU elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import FleetFile
from profiler.devices import device_named
from profiler.measurement import Measurement
from profiler.probe import ProbeLimits
from profiler.profile import ModelProfile, Profile
from profiler.readers.aiconfigurator import ENGINES, OperatorTables, gemm_dtype_of, installed_folder
from profiler.specs import DeviceSpec, ModelSpec
from profiler.sweep import plan_sweep

_FORM = "aiconfigurator:GPU:ENGINE"
_MOST_TOKENS, _MOST_SEQUENCE_TOKENS, _MOST_SEQUENCES, _MOST_KV_TOKENS = 8192, 32_768, 256, 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTables:
    """Names what `--import` asks for."""

    device: DeviceSpec
    engine: str

    @classmethod
    def of(cls, source: str) -> "ImportedTables":
        """Reads `aiconfigurator:h200:vllm`. Raises OptionNotUsable, UnknownDevice."""
        name, _, rest = source.partition(":")
        gpu, _, engine = rest.partition(":")
        if name != "aiconfigurator" or not gpu or engine not in ENGINES:
            remedy = f"write {_FORM}, with ENGINE one of {', '.join(ENGINES)}"
            raise OptionNotUsable(option="--import", value=source, remedy=remedy)
        return cls(device=device_named(gpu), engine=engine)


def models_on(fleet: FleetFile, pool_name: str | None, device: DeviceSpec) -> tuple[Mapping[str, ModelSpec], int]:
    """Returns the fleet's models and the GPUs of a mesh of the pool, by default the first that has this GPU.

    Raises:
        OptionNotUsable: no such pool.
        SourceNotFound, UnsupportedModel: a model's config.json cannot be used.
    """
    able = [p for p in fleet.pools if p.gpu_type is not None and device_named(p.gpu_type) == device]
    chosen = [p for p in able if pool_name in (None, p.name)]
    if not chosen:
        names = ", ".join(p.name for p in able) or "none"
        remedy = f"pools of {device.name} (gpu_type) in the fleet file: {names}"
        raise OptionNotUsable(option="--pool", value=pool_name or "the first", remedy=remedy)
    specs = {
        m.id: read_model_spec(m.id, m.source, m.revision, m.dtype or fleet.engine.dtype, m.weights)
        for m in fleet.models
        if m.base is None
    }
    return specs, chosen[0].mesh_gpus


def import_profile(
    tables: ImportedTables, folder: Path | None, specs: Mapping[str, ModelSpec], num_gpus: int
) -> Profile:
    """Composes the launches that a profiling run would time, on whole GPUs; `folder` is the package's, by default that
    of the one installed here.

    Raises:
        ProfileUnusable: a table is missing, or has nothing of such a model.
    """
    operators = OperatorTables(folder=folder or installed_folder(), device=tables.device, engine=tables.engine)
    return Profile(
        engine=f"{tables.engine} {operators.version}, operators of aiconfigurator",
        device=tables.device,
        num_gpus=num_gpus,
        machine={"gpu": tables.device.name, "source": "aiconfigurator-core, operators timed one by one"},
        models={name: _launches(operators, spec, num_gpus) for name, spec in specs.items()},
    )


def _launches(operators: OperatorTables, spec: ModelSpec, num_gpus: int) -> ModelProfile:
    device = operators.device
    own = replace(operators, gemm_dtype=gemm_dtype_of(spec))
    latency = own.profile(spec, num_gpus).latency(spec, device, num_gpus=num_gpus)
    longest = min(_MOST_SEQUENCE_TOKENS, spec.context_tokens(None))
    limits = ProbeLimits(
        shares=(device.num_sms,),
        max_sequence_tokens=longest,
        max_batch_tokens=_MOST_TOKENS,
        max_sequences=_MOST_SEQUENCES,
        max_kv_tokens=_MOST_KV_TOKENS,
    )
    rows = []
    for planned in plan_sweep(limits):
        launch = planned.launch
        if planned.beside is None:
            seconds = latency.mixed_s(spec, launch.chunks, launch.contexts, launch.sms)
            rows.append(
                Measurement(launch=launch, seconds=seconds, high_s=seconds, repeats=1, is_held_out=planned.is_held_out)
            )
    return ModelProfile(spec=spec, measurements=tuple(rows))
