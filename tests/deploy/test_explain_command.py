"""`muxfleet explain` of a fleet file."""

import json
from pathlib import Path

import msgspec

from placement.plan_explanation import Explanation

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated-8gpu.yaml"


def test_explain__model_of_the_fleet__tells_homes_and_rejected_units(run, tmp_path: Path) -> None:
    file = tmp_path / "why.json"

    code, out, _ = run("explain", EXAMPLE, "llama-70b", "--solver", "search", "--json", file)

    told = json.loads(file.read_text())
    assert code == 0
    assert "on large/0" in out
    assert [h["unit"]["unit_id"] for h in told["homes"]] == ["large/0"]
    rejected = {r["unit_id"]: r for r in told["rejected"]}
    assert rejected.keys() == {f"small/{i}" for i in range(4)}
    assert all("GiB" in r["reason"] and r["lost_per_s"] is None for r in rejected.values())


def test_explain__overloaded_unit__is_told_as_json(run, tmp_path: Path) -> None:
    overloaded = tmp_path / "fleet.yaml"
    overloaded.write_text(
        EXAMPLE.read_text()
        .replace("rate_per_s: 2.0", "rate_per_s: 900")
        .replace("./models", f"{EXAMPLE.parent}/models")
    )
    file = tmp_path / "why.json"

    code, _, err = run("explain", overloaded, "llama-70b", "--json", file)

    assert (code, err) == (0, "")
    (home,) = msgspec.json.decode(file.read_bytes(), type=Explanation).homes  # as a running fleet's is read
    assert home.unit.headroom < 1
    assert home.unit.tbt_s is None


def test_explain__units_with_more_room__says_that_home_has_enough(run, tmp_path: Path) -> None:
    file = tmp_path / "why.json"

    run("explain", EXAMPLE.with_name("simulated-32gpu.yaml"), "llama-70b-b", "--solver", "muxserve", "--json", file)

    told = json.loads(file.read_text())
    (home,) = told["homes"]
    roomier = [r for r in told["rejected"] if r["headroom"] and r["headroom"] > home["unit"]["headroom"] + 1e-9]
    assert roomier
    assert all(r["reason"].endswith(f"on {home['unit']['unit_id']} is enough") for r in roomier)


def test_explain__unknown_model__offers_the_nearest(run) -> None:
    code, _, err = run("explain", EXAMPLE, "lama-70b")

    assert code == 2
    assert "did you mean 'llama-70b'?" in err
