"""`muxfleet plan` counts on no model that units would refuse to load."""

import json
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.control.control_rules import ControlTiming
from deploy.control.unit_registry import UnitRegistry
from pdmux_actor.backends.registry import BY_KIND
from pdmux_actor.lease import UnitReport
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint

GEMMA_2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def command(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    return command


def fleet_file(folder: Path, source: Path, pool: str) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(f"models: [{{id: m, source: {source}}}]\npools: [{{name: p, {pool}}}]\n")
    return file


@pytest.mark.parametrize(
    ("pool", "is_refused"),
    [
        ("device: cuda, gpu_type: H100", True),
        ("device: cuda, gpu_type: H100, backend: sglang", False),
        ("device: simulated, gpu_type: H100", False),
        ("device: cpu", False),
    ],
)
@pytest.mark.parametrize("options", [(), ("--choose-meshes",)], ids=["units", "meshes"])
def test_plan__family_that_kernels_for_gpus_do_not_have__is_placed_where_it_runs(
    run, tmp_path: Path, pool: str, is_refused: bool, options: tuple[str, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_2))

    code, out = run("plan", fleet_file(tmp_path, tmp_path, pool), *options)

    assert code == is_refused
    assert ("not placed: m: Gemma2ForCausalLM is not served on a GPU: it caps" in out) == is_refused


@pytest.fixture
def in_two_files(tmp_path: Path) -> Path:
    """Writes a checkpoint as the hub has large ones."""
    folder = tmp_path / "checkpoint"
    write_random_checkpoint(folder, DEMO_SHAPES["demo-llama"], seed=0)
    (folder / "second.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    index = {"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("pool", "is_read"), [("device: cpu", True), ("device: simulated, gpu_type: H100, kv_memory: 1GiB", False)]
)
@pytest.mark.parametrize(
    ("kept_bytes", "said"),
    [
        (None, "second.safetensors is missing or not a complete safetensors file"),
        (5000, "second.safetensors is missing or not a complete safetensors file, tensor"),
    ],
    ids=["missing", "cut off"],
)
def test_plan__checkpoint_that_is_not_whole__is_said_where_units_would_read_it(
    run, in_two_files: Path, tmp_path: Path, pool: str, is_read: bool, kept_bytes: int | None, said: str
) -> None:
    broken, written = in_two_files / "second.safetensors", tmp_path / "plan.json"
    if kept_bytes is None:
        broken.unlink()
    else:
        broken.write_bytes(broken.read_bytes()[:kept_bytes])

    code, out = run("plan", fleet_file(tmp_path, in_two_files, pool), "--json", written)

    assert code == is_read
    assert ("would not load: m: " in out and said in out) == is_read
    assert list(json.loads(written.read_text())["would_not_load"]) == ["m"] * is_read


def test_plan__checkpoint_whole_or_not_fetched_yet__is_no_reason_to_fail(
    run, in_two_files: Path, tmp_path: Path
) -> None:
    file = fleet_file(tmp_path, in_two_files, "device: cpu")

    assert run("plan", file)[0] == 0
    for weights in in_two_files.glob("*.safetensors"):
        weights.unlink()
    assert run("plan", file)[0] == 0


@pytest.mark.parametrize(
    ("kind", "native_on"),
    [("torch_cpu", "cpu"), ("torch_cuda", "cuda"), ("simulated", None), ("sglang_cpu", None), ("sglang_cuda", None)],
)
def test_running_unit__of_each_kind__is_planned_by_what_its_engine_runs(kind: str, native_on: str | None) -> None:
    report = UnitReport(
        unit_id="u",
        node="n",
        pool="p",
        num_gpus=1,
        endpoint="127.0.0.1:1",
        memory_bytes=1 << 30,
        block_bytes=16384,
        total_blocks=100,
        lease_version=0,
        models=(),
        native_on=BY_KIND[kind].native_on.get(kind),
    )
    registry = UnitRegistry(ControlTiming())
    registry.hear(report, 0.0)

    (unit,) = registry

    assert unit.capacity.native_on == native_on
