"""What `muxfleet plan` says below its table of a fleet file that asks for what cannot be."""

from pathlib import Path

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
