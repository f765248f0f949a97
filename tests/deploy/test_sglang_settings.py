"""What a fleet file may say about pools that run SGLang."""

from pathlib import Path

import pytest

from deploy.errors import FleetFileError
from deploy.fleet_file.settings import parse_fleet_file
from deploy.planning.fleet_planning import _units
from deploy.serve.render import _unit_shape
from deploy.serve.units_application import actor_settings

MODELS = "models: [{id: m, source: org/m}]\n"


def fleet_of(text):
    return parse_fleet_file(MODELS + text, name="fleet.yaml", base=Path("/nowhere"))


def problems_of(text):
    with pytest.raises(FleetFileError) as error:
        fleet_of(text)
    return str(error.value)


def test_backend__per_pool__overrides_the_fleets():
    fleet = fleet_of(
        "engine: {backend: sglang}\n"
        "pools:\n"
        "  - {name: gpu, device: cuda, gpu_type: H200, gpus_per_node: 2, mesh_gpus: 2,\n"
        "     sglang: {decode_sms: [36, 68]}}\n"
        "  - {name: cpu, backend: native}\n"
    )
    gpu, cpu = (actor_settings(_unit_shape(fleet, pool)).engine for pool in fleet.pools)
    assert (gpu.kind, gpu.num_gpus, gpu.device_type, gpu.sglang.decode_sms) == ("sglang_cuda", 2, "H200", (36, 68))
    assert cpu.kind == "torch_cpu"
    assert [next(_units(fleet, pool)).max_models for pool in fleet.pools] == [1, None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pools: [{backend: sglang, mesh_gpus: 2}]", ("pools[0].mesh_gpus", "backend: native")),
        ("pools: [{device: cuda, backend: sglang}]", ("pools[0].gpu_type", "required")),
        ("pools: [{device: simulated, gpu_type: H200, backend: sglang}]", ("pools[0].backend", "native")),
        ("pools: [{sglang: {multiplexing: 'on'}}]", ("pools[0].sglang", "backend: sglang")),
        (
            "pools: [{device: cuda, gpu_type: H200, backend: sglang, sglang: {args: {tp_size: 2}}}]",
            ("pools[0].sglang.args.tp_size = 2", "mesh_gpus"),
        ),
        (
            "pools: [{device: cuda, gpu_type: H200, backend: sglang, sglang: {args: {chunked_prefill_size: 512}}}]",
            ("pools[0].sglang.args.chunked_prefill_size = 512", "multiplexing: off"),
        ),
        (
            "pools: [{device: cuda, gpu_type: H200, backend: sglang, sglang: {decode_sms: [35]}}]",
            ("pools[0].sglang.decode_sms = [35]", "choose from 20, 28"),
        ),
        (
            "pools: [{device: cuda, gpu_type: H200, backend: sglang, sglang: {decode_sms: [68, 36]}}]",
            ("pools[0].sglang.decode_sms", "ascend"),
        ),
        (
            "engine: {policy: duetserve}\npools: [{device: cuda, gpu_type: H200, backend: sglang}]",
            ("pools[0].sglang.multiplexing", "duetserve", "mux or muxwise"),
        ),
        ("pools: [{backend: sglang, sglang: {sleep: true}}]", ("pools[0].sglang.sleep", "memory of GPUs only")),
        (
            "pools: [{device: cuda, gpu_type: H200, backend: sglang, sglang: {args: {enable_memory_saver: true}}}]",
            ("pools[0].sglang.args.enable_memory_saver", "set pools[].sglang.sleep"),
        ),
        (
            "pools: [{backend: sglang, sglang: {multiplexing: 'off', decode_sms: [36]}}]",
            ("pools[0].sglang.decode_sms", "remove it"),
        ),
    ],
)
def test_sglang_pool__what_cannot_be__names_field_and_remedy(text, words):
    told = problems_of(text)
    assert len(told.splitlines()) == 1, told
    for word in words:
        assert word in told
