"""Divides the GPUs of a unit among several engines, with links between these."""

import re
from collections import defaultdict
from dataclasses import dataclass

from pydantic import ByteSize

from deploy.fleet_file.settings import PoolSection
from deploy.planning.fleet_planning import PlannedFleet
from placement.estimation.memory import replica_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedKv:
    """KV of a prompt whose prefill ran from `begun_s` to `done_s`, layer by layer."""

    num_bytes: float
    num_layers: int
    begun_s: float
    done_s: float


class KvLinks:
    """A transfer holds the sender's port out and the receiver's port in until its last byte is there; later ones wait.

    With `layerwise` a layer's KV is on its way as soon as it is computed: the transfer starts after the first layer and
    ends no earlier than one layer's KV after the last. Others have the ports between two of its layers, so a port is
    taken for as long as it sends, and last layers of prompts that end together come one after the other. What was
    begun before another one, and is done after it, has what is left of the ports by then. That a prefix was cached, and
    so ready before, is not used.
    """

    def __init__(self, *, bytes_per_s: float, layerwise: bool) -> None:
        self._bytes_per_s = bytes_per_s
        self._layerwise = layerwise
        self._out, self._in = defaultdict[int, _Port](_Port), defaultdict[int, _Port](_Port)

    def arrival_s(self, sender: int, receiver: int, kv: ComputedKv) -> float:
        """Returns when the last byte is there. To be asked in the order in which prompts are done."""
        whole_s, ports = kv.num_bytes / self._bytes_per_s, (self._out[sender], self._in[receiver])
        first_s, last_part_s = kv.done_s, whole_s
        if self._layerwise:
            first_s, last_part_s = kv.begun_s + (kv.done_s - kv.begun_s) / kv.num_layers, whole_s / kv.num_layers
        sent_s = max(first_s, *(port.sent_s for port in ports)) + whole_s
        there_s = max(sent_s, max(kv.done_s, *(port.there_s for port in ports)) + last_part_s)
        for port in ports:
            port.sent_s, port.there_s = sent_s, there_s
        return there_s


@dataclass(slots=True, eq=False)
class _Port:
    """`sent_s`: when it has sent all it was given, if it never waited for a layer; `there_s`: when the last byte was
    there.
    """

    sent_s: float = 0.0
    there_s: float = 0.0


# Of a pair of engines in one node: what NVLink of A100 reaches in one direction.
NVLINK_BYTES_PER_S = 250e9
# With less, KV of one prompt is under way for hours.
LEAST_LINK_BYTES_PER_S = 1e7
_NAME = re.compile(r"([1-9]\d{0,2})P([1-9]\d{0,2})D(?::(\d{1,6}(?:\.\d{1,6})?))?(:layerwise)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divides a unit into `prefill` and `decode` engines of as many GPUs each, on one node. Every engine has a port of
    `link_bytes_per_s` each way. `layerwise`: the KV of a layer is sent while the next ones are computed. For
    `stops_decode` see loongserve.py.
    """

    prefill: int = 1
    decode: int = 1
    link_bytes_per_s: float = NVLINK_BYTES_PER_S
    layerwise: bool = False
    stops_decode: bool = False

    @property
    def engines(self) -> int:
        return self.prefill + self.decode

    @property
    def name(self) -> str:
        return f"{self.prefill}P{self.decode}D"


def split_named(name: str) -> Split | None:
    """Reads names like 2P1D, 2P1D:50 with the link's GB/s, and 2P1D:50:layerwise. None: it is no such name.
    `split_remedy` says what is wrong with numbers.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    link_bytes_per_s = NVLINK_BYTES_PER_S if found[3] is None else 1e9 * float(found[3])
    return Split(
        prefill=int(found[1]),
        decode=int(found[2]),
        link_bytes_per_s=link_bytes_per_s,
        layerwise=found[4] is not None,
    )


def split_remedy(pool: PoolSection, split: Split) -> str | None:
    """Says why the pool cannot be divided so, and what to do. None: it can."""
    gpus, engines = pool.mesh_gpus, split.engines
    if split.link_bytes_per_s < LEAST_LINK_BYTES_PER_S:
        least, given = (f"{rate / 1e9:g} GB/s" for rate in (LEAST_LINK_BYTES_PER_S, split.link_bytes_per_s))
        return f"a link of {given} takes too long for any KV; give it {least} or more"
    if gpus > 1 and gpus % engines:
        return (
            f"{split.name} makes {engines} engines of each unit, and the {gpus} GPUs of one (mesh_gpus of pool "
            f"{pool.name}) are no multiple of that; choose a split whose sum divides {gpus}, or mesh_gpus: 1"
        )
    if gpus == 1 and engines > max(2, pool.devices_per_node):
        return (
            f"{split.name} takes {engines} GPUs of one node, and those of pool {pool.name} have "
            f"{pool.devices_per_node}; raise gpus_per_node, or choose a smaller split"
        )
    return None


def divided(pool: PoolSection, planned: PlannedFleet, split: Split) -> PoolSection:
    """Returns the pool with engines in place of units: a part of a unit's GPUs each, or one where units have one.
    Every engine holds the weights. A pair of engines is made on a node of one GPU, too.
    """
    engine_gpus = max(1, pool.mesh_gpus // split.engines)
    gpus_per_node = max(1, pool.gpus_per_node // split.engines)
    changes: dict[str, object] = {"mesh_gpus": engine_gpus, "gpus_per_node": gpus_per_node}
    units = [u for u in planned.units if u.pool == pool.name]
    if pool.mesh_gpus > 1 and units:
        models = {m.model: m for m in planned.models}
        beside_kv = max(
            sum(
                replica_bytes(models[p.model], engine_gpus, unit.launch_limits)
                for p in planned.plan.models_of(unit.unit_id)
            )
            for unit in units
        )
        part_bytes = units[0].memory_bytes // split.engines
        changes["device_memory"] = ByteSize(part_bytes)
        changes["kv_memory"] = ByteSize(max(0, min(part_bytes - beside_kv, pool.kv_memory or part_bytes)))
    return pool.model_copy(update=changes)
