"""pools[].host_memory: what a fleet file may say, what units make of it, and what is refused."""

from pathlib import Path

import jsonschema
import pytest

from deploy.errors import FleetFileError, HostMemoryTooSmall
from deploy.fleet_file.settings import FleetFile, check_sources, fleet_json_schema, parse_fleet_file
from deploy.planning import fleet_planning, pool_hardware
from deploy.planning.fleet_planning import units_of_fleet
from deploy.planning.pool_hardware import hardware_of, host_memory_of
from deploy.serve.render import _unit_shape
from deploy.serve.units_application import actor_settings
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.host_budget import host_memory_budget
from profiler.devices import laptop_cpu
from profiler.gpus.h100 import DEVICE as H100

GIB = 1 << 30
EXAMPLES = Path(__file__).parents[2] / "examples"


def fleet_of(pool: str) -> FleetFile:
    text = f"models: [{{id: m, source: ./models/llama-3.1-8b}}]\npools: [{{{pool}}}]\n"
    return parse_fleet_file(text, name="f.yaml", base=EXAMPLES)


@pytest.mark.parametrize(
    ("written", "expected"),
    [("", None), ("host_memory: auto", None), ("host_memory: 64GiB", 64 * GIB), ("host_memory: 0", 0)],
)
def test_host_memory__as_written__reaches_the_engine(written: str, expected: int | None) -> None:
    fleet = fleet_of(f"gpus_per_node: 8, mesh_gpus: 2, device: simulated, gpu_type: H100, {written}")
    engine = actor_settings(_unit_shape(fleet, fleet.pools[0])).engine

    assert (engine.host_memory_bytes, engine.units_per_node) == (expected, 4)


@pytest.mark.parametrize("value", ["auto", "1.5GiB", 0, 1024, None])
def test_host_memory__what_the_parser_takes__the_schema_takes(value: object) -> None:
    schema = jsonschema.Draft202012Validator(fleet_json_schema())

    assert schema.is_valid({"models": [{"id": "a", "source": "x"}], "pools": [{"host_memory": value}]})


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        ("host_memory: lots", 'f.yaml:2: pools[0].host_memory = "lots": must be a size such as 256MiB'),
        (
            "device: cuda, gpu_type: H100, backend: sglang, host_memory: 8GiB",
            'f.yaml:2: pools[0].host_memory = "8.0GiB": SGLang keeps weights there with sglang.sleep: true only; '
            "set that or remove this",
        ),
        (
            "device: cuda, gpu_type: H100, backend: sglang, sglang: {sleep: true}, host_memory: 0",
            "f.yaml:2: pools[0].host_memory = 0: sglang.sleep: true keeps weights in it; raise it, or remove sleep",
        ),
    ],
)
def test_host_memory__cannot_be__is_refused_in_one_line(pool: str, line: str) -> None:
    with pytest.raises(FleetFileError) as refused:
        fleet_of(pool)

    assert refused.value.problems == (line,)


def test_host_memory__holds_no_model__is_refused_with_the_smallest() -> None:
    with pytest.raises(HostMemoryTooSmall) as refused:
        check_sources(fleet_of("host_memory: 64MiB"))

    assert str(refused.value) == (
        "pools[0].host_memory = 64.0MiB: holds the weights of no model (the smallest, m, takes 15.0GiB); "
        "raise it, or set 0 and models that leave a unit are read anew"
    )
    check_sources(fleet_of("host_memory: 16GiB"))
    check_sources(fleet_of("host_memory: 0"))


def test_host_memory__auto__is_a_share_of_the_node() -> None:
    def budget(**changes: object) -> int:
        settings = EngineSettings(kv_pool_bytes=1, **({"kind": "torch_cpu", "host_memory_bytes": None} | changes))
        return host_memory_budget(settings, H100)

    alone = budget()
    assert alone > 0
    assert budget(units_per_node=4) == alone // 4
    assert budget(host_memory_bytes=7) == 7
    assert budget(kind="simulated", device_type="H100", num_gpus=2) == H100.memory_bytes  # half of theirs
    assert host_memory_of(fleet_of("device: simulated, gpu_type: H100").pools[0], 2) == H100.memory_bytes
    assert host_memory_of(fleet_of("host_memory: 3GiB").pools[0], 1) == 3 * GIB
    assert laptop_cpu(num_cores=2, memory_bytes=1).host_copy_bytes_per_s == 0


def test_plan__machine_within_a_container__has_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of a CPU counts so: a plan for all of the node's memory would be for none that there is."""
    for module in (fleet_planning, pool_hardware):
        monkeypatch.setattr(module, "host_memory_bytes", lambda: 8 * GIB)
    fleet = fleet_of("device: cpu")

    assert host_memory_of(fleet.pools[0], 1) == 2 * GIB
    assert hardware_of(fleet.pools[0]).device.memory_bytes == 8 * GIB
    assert [unit.memory_bytes for unit in units_of_fleet(fleet)] == [8 * GIB]
