"""`muxfleet profile --import`: a profile from published tables, and the plan that is made by it."""

import json
from pathlib import Path

import pytest
from operator_tables import write_tables

from deploy.cli import main
from profiler.gpus.h200 import DEVICE as H200
from profiler.profile_file import read_profile

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 65536,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
_POOL = "{name: h, device: simulated, gpu_type: H200, nodes: {min: 1}"


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as exited:
        main([str(a) for a in arguments])
    return int(exited.value.code or 0)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(_CONFIG))
    write_tables(tmp_path / "aiconfigurator_core")
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "models: [{id: small, source: ./small, dtype: bfloat16, "
        "demand: {rate_per_s: 5, prompt_tokens: 1000, output_tokens: 200}}]\n"
        f"pools: [{_POOL}}}]\n"
    )
    return file


def test_import__of_a_fleets_pool__plans_are_made_by_it(fleet: Path, tmp_path: Path) -> None:
    out, before, after = (tmp_path / name for name in ("h200.parquet", "before.json", "after.json"))
    assert run("plan", fleet, "--json", before) == 0

    asked = ("--import", "aiconfigurator:h200:vllm", "--tables", tmp_path / "aiconfigurator_core")
    assert run("profile", fleet, *asked, "--out", out) == 0

    profile = read_profile(out)
    assert (profile.device, profile.num_gpus, profile.best_latency()[0]) == (H200, 1, "table")
    assert {e.latency for e in profile.held_out_errors() if e.mean < 0.1} >= {"table"}
    fleet.write_text(fleet.read_text().replace(_POOL, f"{_POOL}, profile: {out}"))
    assert run("plan", fleet, "--json", after) == 0
    assert json.loads(before.read_text())["units"] != json.loads(after.read_text())["units"]


def launches_of(fleet: Path, out: Path) -> dict[object, float]:
    asked = ("--import", "aiconfigurator:h200:vllm", "--tables", fleet.parent / "aiconfigurator_core")
    assert run("profile", fleet, *asked, "--out", out) == 0
    return {m.launch: m.seconds for m in read_profile(out).models["small"].measurements}


def test_import__of_a_model_with_weights_of_one_byte__takes_their_products(fleet: Path, tmp_path: Path) -> None:
    plain = launches_of(fleet, tmp_path / "plain.parquet")
    config = tmp_path / "small" / "config.json"
    config.write_text(json.dumps({**_CONFIG, "quantization_config": {"quant_method": "fp8"}}))

    narrow = launches_of(fleet, tmp_path / "narrow.parquet")

    assert narrow.keys() == plain.keys()
    assert all(narrow[launch] < 0.99 * plain[launch] for launch in plain)


def test_import__fleet_with_an_adapter__is_of_its_base(fleet: Path, tmp_path: Path) -> None:
    text = fleet.read_text().replace("models: [", "models: [{id: tuned, base: small, adapter: ./tuned}, ")
    fleet.write_text(text)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "adapter_config.json").write_text("{}")

    assert launches_of(fleet, out := tmp_path / "h200.parquet")
    assert read_profile(out).models.keys() == {"small"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("--import", "aiconfigurator:h200"),
            "write aiconfigurator:GPU:ENGINE, with ENGINE one of vllm",
        ),
        (("--import", "aiconfigurator:h201:vllm"), "did you mean 'H200'"),
        (("--import", "aiconfigurator:h100:vllm"), "pools of H100 (gpu_type) in the fleet file: none"),
        (("--import", "aiconfigurator:h200:vllm", "--cores", "2"), "--import measures nothing"),
        (
            ("--import", "aiconfigurator:h200:vllm", "--tables", "nowhere"),
            "has no tables of H200; name the folder",
        ),
        (("--tables", "here"), "it goes with --import"),
    ],
)
def test_import__of_what_is_not_there__is_told_with_the_remedy(
    fleet: Path, asked: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("profile", fleet, *asked) != 0

    assert said in " ".join(capsys.readouterr().err.split())
