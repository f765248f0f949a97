"""Host memory for the weights of models that sleep: how a fleet file says it, and when that cannot be."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ByteSize

from deploy.errors import HostMemoryTooSmall, SourceNotFound
from deploy.fleet_file.fleet_problems import Problem
from deploy.fleet_file.size_types import AutoSize, Bytes
from profiler.errors import UnsupportedModel

if TYPE_CHECKING:
    from deploy.fleet_file.model_section import ModelSection
    from deploy.fleet_file.settings import FleetFile

HostMemory = AutoSize[Bytes]
"""None: each unit's share of its node's memory."""


def host_memory_problems(
    host_memory: ByteSize | None, *, backend: str, sleeps: bool, path: tuple[str | int, ...]
) -> Iterator[Problem]:
    """`path` is that of the pool, `sleeps` its sglang.sleep."""
    if backend != "sglang" or host_memory is None:
        return
    if host_memory > 0 and not sleeps:
        remedy = "SGLang keeps weights there with sglang.sleep: true only; set that or remove this"
        yield Problem(path=(*path, "host_memory"), value=host_memory.human_readable(), remedy=remedy)
    if host_memory == 0 and sleeps:
        remedy = "sglang.sleep: true keeps weights in it; raise it, or remove sleep"
        yield Problem(path=(*path, "host_memory"), value=0, remedy=remedy)


def check_host_memory(fleet: "FleetFile") -> None:
    """Raises HostMemoryTooSmall: a pool's holds the weights of no model whose shape can be read."""
    asked = [(i, pool.host_memory) for i, pool in enumerate(fleet.pools) if pool.host_memory]
    if not asked:
        return
    models = [model for model in fleet.models if model.base is None]
    sizes = [(size, model.id) for model in models if (size := _weight_bytes(model, fleet.engine.dtype))]
    if not sizes:
        return
    needed_bytes, smallest = min(sizes)
    for index, host_memory in asked:
        if host_memory < needed_bytes:
            raise HostMemoryTooSmall(
                field=f"pools[{index}].host_memory",
                value=host_memory.human_readable(),
                model=smallest,
                needed=ByteSize(needed_bytes).human_readable(),
            )


def _weight_bytes(model: "ModelSection", dtype: str | None) -> int | None:
    from deploy.fleet_file.model_specs import read_model_spec  # brings huggingface_hub, which most commands do without

    try:
        spec = read_model_spec(model.id, model.source, model.revision, model.dtype or dtype, model.weights)
        return spec.weight_bytes
    except (SourceNotFound, UnsupportedModel):
        return None  # whoever needs it says so
