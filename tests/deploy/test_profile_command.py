"""`muxfleet profile` against the real CPU engine, with a checkpoint so small that a few seconds say enough."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli import main
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.serving.known_latency import read_known_latency
from profiler.measurement import Measurement
from profiler.profile_file import read_profile, write_profile

Run = Callable[..., tuple[int, str, str]]
TINY = CheckpointShape(
    model_type="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    max_position_embeddings=512,
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main(["profile", *(str(a) for a in arguments)])
        out, err = capsys.readouterr()
        return int(exited.value.code or 0), out, err

    return run_main


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path / "tiny", TINY, seed=1)
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "models: [{id: tiny, source: ./tiny}]\npools: [{name: here, device: cpu, cores: 1, kv_memory: 32MiB}]\n"
    )
    return file


def forget_half(out: Path) -> tuple[Measurement, ...]:
    """As if the run had been cut short: a fast machine measures everything in the least budget there is."""
    profile = read_profile(out)
    model = profile.models["tiny"]
    kept = model.measurements[: len(model.measurements) // 2]
    write_profile(replace(profile, models={"tiny": replace(model, measurements=kept)}), out)
    return kept


def test_profile__in_two_goes__second_adds_to_the_first(run: Run, fleet: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "p.parquet", tmp_path / "p.json"

    first_code, _, _ = run(fleet, "--out", out, "--budget", "2")
    first = forget_half(out)
    code, text, _ = run(fleet, "--out", out, "--budget", "2", "--json", figures)

    rows = read_profile(out).models["tiny"].measurements
    assert (first_code, code) == (0, 0)
    assert rows[: len(first)] == first
    assert len(rows) > len(first) > 0
    assert "held-out" in text
    data = json.loads(figures.read_text())
    assert data["launches"] == {"tiny": len(rows)}
    assert {e["latency"] for e in data["errors"]} == {"roofline", "fitted", "table"}
    assert data["best"] in {"roofline", "fitted", "table"}
    assert data["machine"]["processor"]
    known = read_known_latency(str(out))
    assert 0 < known.latency.decode_s(read_profile(out).models["tiny"].spec, [64] * 4, 1) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a fleet file, or a checkpoint"),
        (["{fleet}", "--checkpoint", "x"], "name a fleet file, or a checkpoint"),
        (
            ["{fleet}", "--pool", "there"],
            "--pool there: cpu and cuda pools can be measured; the fleet file has here",
        ),
        (["{fleet}", "--dtype", "float32"], "the fleet file says that"),
        (["{fleet}", "--device", "cuda"], "--device/--cores/--dtype cuda: the fleet file says that"),
        (["--checkpoint", "x", "--device", "cuda", "--cores", "2"], "--cores 2: a GPU is measured whole"),
        (["{fleet}", "--out", "{fleet}"], "not a readable parquet file"),
    ],
)
def test_profile__unusable_input__is_one_line_and_code_2(
    run: Run, fleet: Path, arguments: list[str], message: str
) -> None:
    code, _, err = run(*(a.format(fleet=fleet) for a in arguments))

    assert code == 2
    assert err.count("\n") == 1
    assert message in err


def test_profile__of_another_machine__is_not_added_to(run: Run, fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    assert run(fleet, "--out", out, "--budget", "1")[0] == 0
    there = replace(read_profile(out), machine={"processor": "Z80"})
    write_profile(there, out)

    code, _, err = run(fleet, "--out", out, "--budget", "1")

    assert code == 2
    assert "of Z80" in err
    assert read_profile(out) == there
