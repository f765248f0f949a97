"""What is wrong with a fleet file's adapters is said with the key, the value and the remedy."""

import json
from pathlib import Path

import pytest

from deploy.errors import FleetFileError, SourceNotFound
from deploy.fleet_file.settings import check_sources, parse_fleet_file
from deploy.planning.fleet_planning import placement_models
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

LLAMA = "models:\n  - {id: llama, source: x/y}\n"
ADAPTER = "  - {id: sql, base: llama, adapter: ./sql"

BAD = {
    "base not in the fleet": (
        LLAMA + "  - {id: sql, base: lama, adapter: ./sql}\n",
        'f.yaml:3: models[1].base = "lama": the fleet has no such model; it has llama',
    ),
    "base is an adapter": (
        LLAMA + ADAPTER + "}\n  - {id: deeper, base: sql, adapter: ./deeper}\n",
        'f.yaml:4: models[2].base = "sql": is an adapter itself; name the model that both were trained on',
    ),
    "no base": (
        LLAMA + "  - {id: sql, adapter: ./sql}\n",
        'f.yaml:3: models[1].adapter = "./sql": needs a base: name the model of this file that it was trained on',
    ),
    "no adapter": (
        LLAMA + "  - {id: sql, base: llama, source: x/z}\n",
        'f.yaml:3: models[1].base = "llama": is for adapters; write adapter: FOLDER beside it, or remove it',
    ),
    "no source": (LLAMA + "  - {id: sql, base: llama}\n", "f.yaml:3: models[1].source: required, but missing"),
    "weights of its own": (
        LLAMA + ADAPTER + ", source: x/z}\n",
        "f.yaml:3: models[1].source = \"x/z\": an adapter's weights are its base's; remove it",
    ),
    "dtype": (
        LLAMA + ADAPTER + ", dtype: float32}\n",
        'f.yaml:3: models[1].dtype = "float32": an adapter has its base\'s; remove it',
    ),
    "context": (
        LLAMA + ADAPTER + ", max_model_len: 100}\n",
        "f.yaml:3: models[1].max_model_len = 100: an adapter has its base's; remove it",
    ),
    "replicas": (
        LLAMA + ADAPTER + ", replicas: {max: 2}}\n",
        "f.yaml:3: models[1].replicas.max = 2: an adapter is wherever its base is; set it on the base",
    ),
    "sglang": (
        LLAMA + ADAPTER + "}\npools: [{name: gpus, device: cuda, backend: sglang}]\n",
        "f.yaml:3: models[1].base = \"llama\": units of pool 'gpus' take no adapters (backend sglang, or mesh_gpus "
        "above 1 on cuda), and may be given the base; serve it in a fleet without such a pool",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_adapters__bad_sections__say_what_to_change(case: str, tmp_path: Path) -> None:
    text, line = BAD[case]

    with pytest.raises(FleetFileError) as raised:
        parse_fleet_file(text, name="f.yaml", base=tmp_path)
    assert line in str(raised.value).splitlines()


def test_adapter__folder_beside_the_fleet_file__is_its_source(tmp_path: Path) -> None:
    fleet = parse_fleet_file(LLAMA + ADAPTER + "}\n", name="f.yaml", base=tmp_path)

    assert fleet.models[1].source == str(tmp_path / "sql")
    with pytest.raises(SourceNotFound, match=r"as PEFT saves adapters, with an adapter_config.json"):
        check_sources(fleet)


def test_planned__base_with_adapters__counts_their_memory(tmp_path: Path) -> None:
    shape = CheckpointShape(
        model_type="llama", num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
    )
    write_random_checkpoint(tmp_path / "llama", shape, seed=1)
    for number in range(3):
        (tmp_path / f"sql{number}").mkdir()
        config = {"peft_type": "LORA", "r": 9, "target_modules": ["q_proj", "o_proj"]}
        (tmp_path / f"sql{number}" / "adapter_config.json").write_text(json.dumps(config))
    adapters = "".join(f"  - {{id: sql{n}, base: llama, adapter: ./sql{n}}}\n" for n in range(4))  # the last is missing
    fleet = parse_fleet_file(
        f"models:\n  - {{id: llama, source: ./llama, dtype: float32}}\n{adapters}", name="f.yaml", base=tmp_path
    )

    (model,) = placement_models(fleet)

    slots, rank, layers, number_bytes = 4 + 2, 16, 2, 4
    of_qkv, of_output = 3 * 64 + 64 + 32 + 32, 64 + 64
    assert model.adapters_bytes == slots * rank * layers * number_bytes * (of_qkv + of_output)
