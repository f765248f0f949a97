"""A folder with a config.json only is a model for a simulated fleet: it loads, and it speaks bytes."""

import json
from pathlib import Path

import pytest

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.executors import build_executor
from pdmux_actor.serving.vocabulary_source import load_vocabulary
from profiler.devices import device_named
from profiler.latency import ChunkShape
from profiler.roofline import RooflineLatency
from router.text.encoder import load_encoder
from router.text.shared_tokenizers import SharedTokenizers

MODELS = Path(__file__).parents[3] / "examples" / "models"


def assignment(source: Path) -> ModelAssignment:
    return ModelAssignment(model="m", source=str(source), quota_blocks=1, slo=Slo(ttft_s=1.0, tbt_s=0.1))


@pytest.mark.parametrize("folder", sorted(MODELS.iterdir()), ids=lambda folder: folder.name)
def test_example_model__simulated__loads_without_weights(folder: Path) -> None:
    executor = build_executor(
        EngineSettings(kind="simulated", kv_pool_bytes=1 << 30, device_type="H100", num_gpus=2), None
    )
    info = executor.load_model(ModelSource(model="m", source=str(folder)))
    assert info.max_model_len == json.loads((folder / "config.json").read_text())["max_position_embeddings"]


def test_shape_only_folder__gateway_and_unit__speak_the_same_tokens() -> None:
    encoder = load_encoder(str(MODELS / "llama-3.1-8b"), None, SharedTokenizers())
    ids = encoder.encode("Hello, world", add_special_tokens=False)
    load_vocabulary(assignment(MODELS / "llama-3.1-8b"))
    assert encoder.decode(ids) == "Hello, world"
    assert "Hello" in encoder.render_chat([{"role": "user", "content": "Hello"}], (), {})


def test_shape_only_folder__real_executor__is_refused_for_its_weights() -> None:
    executor = TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=1 << 14, num_cores=1)
    with pytest.raises(ModelLoadError, match=r"weights|safetensors"):
        executor.load_model(ModelSource(model="m", source=str(MODELS / "qwen2.5-1.5b")))


def test_folder_with_weights_but_no_tokenizer__is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODELS / "llama-7b" / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="tokenizer"):
        load_vocabulary(assignment(tmp_path))


def test_simulated_group__two_gpus__launches_are_those_of_the_group() -> None:
    executor = build_executor(
        EngineSettings(kind="simulated", kv_pool_bytes=1 << 30, device_type="H100", num_gpus=2), None
    )
    spec = executor.load_model(ModelSource(model="m", source=str(MODELS / "llama-3.1-8b"))).spec
    one, two = (RooflineLatency(device_named("H100"), num_gpus=n) for n in (1, 2))
    shape = [ChunkShape(2048)]
    assert executor._latency.prefill_s(spec, shape, 132) == two.prefill_s(spec, shape, 132)
    assert two.prefill_s(spec, shape, 132) < 0.7 * one.prefill_s(spec, shape, 132)
