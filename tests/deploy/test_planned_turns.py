"""`muxfleet plan` of a fleet with more models than room says who takes turns, where, and what waits that means."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

TURNS = Path(__file__).resolve().parents[2] / "examples" / "turns.yaml"


def fleet_file(
    folder: Path, checkpoints: Mapping[str, Path], *, copies: int = 1, hold_s: float = 30.0, **least
) -> Path:
    """The example, with so many models of each checkpoint; `least` has the replicas that models have at least."""
    fleet = yaml.safe_load(TURNS.read_text())
    fleet["models"] = [
        {
            "id": f"{m['id']}-{copy}" if copy else m["id"],
            "source": str(checkpoints[m["id"]]),
            "replicas": {"min": least.get(m["id"].replace("-", "_"), 0)},
        }
        for m in fleet["models"]
        for copy in range(copies)
    ]
    fleet["gateway"]["hold_s"] = hold_s
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet))
    return file


def planned(run, file: Path) -> tuple[int, str, list[dict]]:
    written = file.parent / "plan.json"
    code, out, _ = run("plan", file, "--json", written)
    return code, out, json.loads(written.read_text())["turns"]


def test_plan__models_take_turns__says_which_and_where_and_how_long_requests_wait(
    run, tmp_path: Path, demo_checkpoints
) -> None:
    code, out, turns = planned(run, fleet_file(tmp_path, demo_checkpoints))

    assert code == 0
    assert "demo-qwen3 takes turns with demo-llama, demo-qwen2 on laptop/0" in out
    assert "worst: demo-qwen3 with 0.0%: it has no place of its own; what is served by turns is not counted" in out
    assert "at most gateway.hold_s (30 s)" in out
    (turn,) = turns
    assert turn["units"] == ["laptop/0"]
    assert 0 < turn["load_s"] < turn["turn_s"] < turn["round_s"] <= turn["hold_s"] + 1
    assert turn["refused_share"] == 0


def test_plan__rounds_take_longer_than_requests_wait__says_what_share_is_refused(
    run, tmp_path: Path, demo_checkpoints
) -> None:
    code, out, turns = planned(run, fleet_file(tmp_path, demo_checkpoints, copies=4, hold_s=1.0))

    assert code == 0
    assert len(turns) >= 8
    assert all(0.3 < turn["refused_share"] < 1 for turn in turns)
    assert "of its requests are refused after gateway.hold_s (1 s)" in out


@pytest.mark.parametrize(("least", "is_loaded"), [({}, True), ({"demo_llama": 1, "demo_qwen2": 1}, False)])
def test_plan__models_that_always_have_places_leave_no_room__says_that_the_other_is_never_loaded(
    run, tmp_path: Path, demo_checkpoints, least, is_loaded
) -> None:
    code, out, turns = planned(run, fleet_file(tmp_path, demo_checkpoints, **least))

    assert code == int(not is_loaded)
    assert bool(turns[0]["units"]) is is_loaded
    assert ("demo-qwen3 is never loaded" in out) is not is_loaded


def test_plan__room_comes_from_spare_replicas__says_so_and_names_nobody(run, tmp_path: Path, demo_checkpoints) -> None:
    source = str(demo_checkpoints["demo-llama"])
    fleet = yaml.safe_load(TURNS.read_text())
    often, seldom = {"min": 1, "max": 2}, {"min": 0}
    fleet["models"] = [
        {"id": "a", "source": source, "replicas": often, "demand": {"rate_per_s": 1}},
        {"id": "late", "source": source, "replicas": seldom, "demand": {"rate_per_s": 0}},
        {"id": "b", "source": source, "replicas": often, "demand": {"rate_per_s": 0.01}},
    ]
    fleet["pools"][0] |= {"device_memory": "100MiB", "nodes": {"min": 2, "max": 2}}
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet))

    code, out, (turn,) = planned(run, file)

    assert (code, turn["with_models"], turn["units"]) == (0, [], ["laptop/0", "laptop/1"])
    assert "late has no place until it is asked for; then it is loaded on laptop/0, laptop/1, where" in out
    assert "takes turns" not in out
