"""What is no adapter of its base is refused with the field, the value and the remedy."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lora_adapters import ALL_MODULES, AdapterShape, random_adapter
from safetensors.torch import load_file, save_file

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.lora_checkpoint import LoraAdapter, read_adapter
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from profiler.specs import ModelSpec

TINY = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_random_checkpoint(folder, CheckpointShape(model_type="llama", **TINY), seed=1)
    return folder


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return random_adapter(base, tmp_path / "adapter", AdapterShape(4, ALL_MODULES))


def read(adapter: Path, base: Path) -> LoraAdapter:
    spec = ModelSpec.from_config(json.loads((base / "config.json").read_text()))
    return read_adapter("sql", str(adapter), None, spec, torch.float32)


def set_keys(**keys: object) -> Callable[[Path], None]:
    def change(adapter: Path) -> None:
        path = adapter / CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return change


def set_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def changed(adapter: Path) -> None:
        tensors = load_file(adapter / WEIGHTS)
        change(tensors)
        (adapter / WEIGHTS).unlink()
        save_file(tensors, adapter / WEIGHTS)

    return changed


PREFIX = "base_model.model.model.layers"
Q_OF_0 = f"{PREFIX}.0.self_attn.q_proj.lora"
FAULTS = {
    "dora": (set_keys(use_dora=True), "use_dora = true is not served; merge it into its base"),
    "modules to save": (set_keys(modules_to_save=["lm_head"]), 'modules_to_save = ["lm_head"]'),
    "biases": (set_keys(bias="all"), "bias = 'all'"),
    "taken out of its base": (
        set_keys(init_lora_weights="pissa_niter_4"),
        "init_lora_weights = 'pissa_niter_4': it goes with weights of its base that it changed; merge it into its base",
    ),
    "taken out of its base, rounded": (set_keys(init_lora_weights="loftq"), "init_lora_weights = 'loftq'"),
    "another method": (set_keys(peft_type="IA3"), "peft_type = 'IA3'"),
    "rank too large": (set_keys(r=512), "r = 512 is larger than 256"),
    "no rank": (set_keys(r=None), "r = None is no rank"),
    "no alpha": (set_keys(lora_alpha="much"), "lora_alpha = 'much' is no number"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "adapter_config.json is missing"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "save the adapter as safetensors"),
    "cut off": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:900]),
        "is not a complete safetensors file",
    ),
    "one side only": (set_tensors(lambda t: t.pop(f"{Q_OF_0}_B.weight")), "lora_B of model.layers.0.self_attn.q_proj"),
    "another target": (
        set_tensors(lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)})),
        "tensor base_model.model.lm_head.lora_A.weight changes no projection of q_proj",
    ),
    "magnitudes": (
        set_tensors(lambda t: t.update({f"{Q_OF_0}_magnitude_vector": torch.zeros(32)})),
        "changes no projection",
    ),
    "more layers": (
        set_tensors(lambda t: t.update({f"{PREFIX}.2.mlp.up_proj.lora_A.weight": torch.zeros(4, 32)})),
        "its base has 2 layers; set `base` to the model that the adapter was trained on",
    ),
    "other sizes": (
        set_tensors(lambda t: t.update({f"{Q_OF_0}_A.weight": torch.zeros(4, 64)})),
        "lora_A [4, 64] and lora_B [32, 4]; its base takes [4, 32], [32, 4]; set `base`",
    ),
    "experts": (
        set_keys(target_parameters=["mlp.experts.gate_up_proj"]),
        'target_parameters = ["mlp.experts.gate_up_proj"] is not served; merge it into its base',
    ),
    "nothing in it": (set_tensors(dict.clear), "holds no LoRA matrices"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_read_adapter__no_adapter_of_the_base__says_which_field_and_what_to_do(
    adapter: Path, base: Path, fault: str
) -> None:
    change, told = FAULTS[fault]
    change(adapter)

    with pytest.raises(ModelLoadError) as raised:
        read(adapter, base)
    assert told in str(raised.value)
    assert "sql" in str(raised.value)


def test_read_adapter__folder_that_is_not_there__is_said(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        read(tmp_path / "nowhere", base)


@pytest.mark.parametrize(("keys", "factor"), [({}, 8 / 4), ({"use_rslora": True}, 8 / 2)])
def test_read_adapter__alpha__scales_as_peft_does(adapter: Path, base: Path, keys: dict, factor: float) -> None:
    set_keys(lora_alpha=8, **keys)(adapter)

    pair = read(adapter, base).layers[0]["q_proj"]

    torch.testing.assert_close(pair.b, factor * load_file(adapter / WEIGHTS)[f"{Q_OF_0}_B.weight"].t())


def test_read_adapter__of_a_mixture__takes_attention_and_refuses_experts(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_random_checkpoint(base, CheckpointShape(model_type="qwen3_moe", **TINY), seed=1)
    of_attention = random_adapter(base, tmp_path / "attention", AdapterShape(4, ALL_MODULES[:4]))
    assert set(read(of_attention, base).layers[1]) == set(ALL_MODULES[:4])

    for place in ("mlp.experts.0.up_proj", "mlp.up_proj", "mlp.gate"):
        set_tensors(lambda t, name=place: t.update({f"{PREFIX}.0.{name}.lora_A.weight": torch.zeros(4, 32)}))(
            of_attention
        )
        with pytest.raises(ModelLoadError, match=f"{place}.lora_A.weight changes no projection of its base, a mixture"):
            read(of_attention, base)
        set_tensors(lambda t, name=place: t.pop(f"{PREFIX}.0.{name}.lora_A.weight"))(of_attention)
