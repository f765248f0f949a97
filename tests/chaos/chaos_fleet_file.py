"""The fleet file of the scenarios."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from chaos_load import MODELS
from fleets.byte_checkpoint import write_checkpoint

_LAYERS = (16, 4096, 14336, 32, 8, 128)  # 9 GB: a unit can hold all three


_BRIEFLY = {"min": 0, "max": 1, "idle_after_s": 20}
SLEEPER: dict[str, object] = {"id": "sleeper", "source": "./alpha", "replicas": _BRIEFLY}


_POOL = {"name": "sim", "device": "simulated", "gpu_type": "A40", "gpus_per_node": 3, "kv_memory": "8GiB"}
LITTLE_KV_MEMORY = "90MiB"  # for the three models of a unit: 480 tokens each, while a client's request takes 120


def fleet_on_two_nodes(folder: Path, *, port: int, kv_memory: str = "2GiB", **gateway: object) -> Path:
    """Two units on nodes with the label place=stays, two on others. With keys of the section `gateway`."""
    pool = {"device": "simulated", "gpu_type": "A40", "gpus_per_node": 2, "kv_memory": kv_memory}
    pools = tuple({"name": place, "node_labels": {"place": place}, **pool} for place in ("stays", "goes"))
    return fleet_of(folder, port=port, pools=pools, sections={"gateway": gateway})


def fleet_of(
    folder: Path,
    *,
    port: int,
    extra: tuple[dict[str, object], ...] = (),
    pools: tuple[dict[str, object], ...] = (_POOL,),
    sections: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> Path:
    """`sections` are added to the file; `gateway` to what it says there."""
    for model in MODELS:
        if not (folder / model).exists():
            write_checkpoint(folder / model, _LAYERS)
    models = [
        {"id": m, "source": f"./{m}", "slo": {"ttft_s": 5.0, "tbt_s": 1.0}, "replicas": {"min": 2, "max": 2}}
        for m in MODELS
    ]
    fleet = {
        "name": "chaos",
        "models": [*models, SLEEPER, *extra],
        "pools": list(pools),
        **{name: dict(section) for name, section in sections.items()},
        "gateway": {"port": port, "proxy": "python", "replicas": 2, "hold_s": 90, **sections.get("gateway", {})},
    }
    file = folder / "fleet.json"
    file.write_text(json.dumps(fleet))
    return file
