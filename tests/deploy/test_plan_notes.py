"""What `muxfleet plan` says below its table of a fleet file that asks for what cannot be."""

from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated-8gpu.yaml"


def test_plan__longest_sequence_beyond_the_checkpoint__says_what_is_served(run, tmp_path: Path) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    for model in fleet["models"]:
        model["source"] = str(EXAMPLE.parent / model["source"])
    fleet["models"][1]["max_model_len"] = 10**9
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))

    code, out, _ = run("plan", tmp_path / "fleet.yaml")

    assert code == 0
    assert "llama-8b: max_model_len 1000000000 is more than its checkpoint has positions for" in out
    assert "sequences end at 131072 tokens" in out
    assert "llama-70b: max_model_len" not in out


def test_plan__nothing_fits__bound_is_no_negative_zero(run, tmp_path: Path) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    fleet["models"], fleet["pools"] = fleet["models"][:1], fleet["pools"][1:]
    fleet["models"][0]["source"] = str(EXAMPLE.parent / fleet["models"][0]["source"])
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))

    code, out, _ = run("plan", tmp_path / "fleet.yaml")

    assert code == 1
    assert "no plan serves more than 0.00 requests/s" in out


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        (
            3,
            "2 units stand empty: a: one request of mean length of each model needs 80 token blocks together, the pool "
            "has 16 (unit q/0); raise the KV pool of its units (pools[].kv_memory) by 1 MiB",
        ),
        (1, "2 units stand empty: a may have 1 replica at most; raise its replicas.max"),
    ],
)
def test_plan__empty_units_beside_demand_that_is_not_served__says_what_keeps_the_model_from_them(
    run, tmp_path: Path, replicas: int, told: str
) -> None:
    assert run("demo", "--write", tmp_path)[0] == 0
    pools = [
        {"name": "p", "device": "cpu", "kv_memory": "4MiB", "device_memory": "1GiB"},
        {"name": "q", "device": "cpu", "kv_memory": "256KiB", "device_memory": "1GiB", "nodes": {"min": 2}},
    ]
    source = "./checkpoints/demo-llama"
    model = {"id": "a", "source": source, "demand": {"rate_per_s": 1000}, "replicas": {"max": replicas}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"models": [model], "pools": pools}))

    _, out, _ = run("plan", tmp_path / "fleet.yaml")
    model["demand"] = {"rate_per_s": 0.1}
    (tmp_path / "idle.yaml").write_text(yaml.safe_dump({"models": [model], "pools": pools}))
    _, idle, _ = run("plan", tmp_path / "idle.yaml")

    assert [line for line in out.splitlines() if "empty" in line] == [told]
    assert "empty" not in idle


def test_plan__target_that_no_unit_meets__is_not_to_be_had_by_more_replicas(run, tmp_path: Path) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    fleet["models"] = fleet["models"][1:2]
    fleet["models"][0] |= {"source": str(EXAMPLE.parent / fleet["models"][0]["source"]), "replicas": {"max": 1}}
    fleet["models"][0]["slo"] = {"ttft_s": 1e-6, "tbt_s": 1e-6}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))

    _, out, _ = run("plan", tmp_path / "fleet.yaml")

    assert "no unit of this fleet meets its SLO, however little is asked of it" in out
    assert "replicas.max" not in out
