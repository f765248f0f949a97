"""Models that run by transformers' own code say what transformers says, however the work is cut up (invariant 6)."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from tiny_models import LATENT, has_layer_windows, tiny_config, write_tiny_checkpoint
from transformers_greedy import choices_along, greedy_tokens
from transformers_rig import quiet_transformers, transformers_rig

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models import faster_modules
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.transformers_config import TransformersConfig
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.families.entry import ModelFamily
from profiler.families.registry import all_families
from profiler.specs import ModelSpec

NEW_TOKENS = 5
LENGTHS = (300, 1, 2, 64, 39, 41, 150, 17, 90)  # windows of the tiny models are 40 tokens long
LARGER = {
    "vocab_size": 3200, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 2304, "ffn_dim": 2304, "n_inner": 2304, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "word_embed_proj_dim": 1024,
}  # fmt: skip
SERVED = [family for family in all_families().values() if family.refusal is None]
REFUSED = [family for family in all_families().values() if family.refusal is not None]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with quiet_transformers():
        yield


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    with transformers_rig() as rig:
        yield rig


def assert_greedy(model: Any, sequences: Sequence[TokenSequence]) -> None:
    """Each new token is the one that transformers' own forward has highest after all before it, and so, one after the
    other, what its generate gives.
    """
    for sequence in sequences:
        prompt, said = (
            sequence.token_ids[: sequence.num_prompt_tokens],
            sequence.token_ids[sequence.num_prompt_tokens :],
        )
        assert said == choices_along(model, prompt, said), len(sequence.token_ids)


def assert_generated(model: Any, sequence: TokenSequence) -> None:
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    assert sequence.token_ids == [*prompt, *greedy_tokens(model, prompt, NEW_TOKENS)]


@pytest.mark.parametrize("family", SERVED, ids=lambda family: family.model_type)
def test_architecture__sliced_chunked_and_cached__says_what_transformers_says(
    rig: CpuRig, tmp_path: Path, family: ModelFamily
) -> None:
    model = write_tiny_checkpoint(tmp_path, family.model_type)
    assert type(model).__name__ == family.name
    rig.load("m", tmp_path)
    calls = rig.executor._attached["m"].decoder._calls
    assert family.changes_scores == calls.changes_scores
    assert family.slides or not any(calls.windows.values())
    prompts = [make_prompt(length, vocab_size=160) for length in LENGTHS]

    sliced = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(sliced, layers_per_slice=2)
    rig.decode(sliced, NEW_TOKENS - 1, steps_per_launch=4)
    alone = rig.sequence("m", prompts[0], NEW_TOKENS)
    rig.prefill([alone], layers_per_slice=1)
    rig.decode([alone], NEW_TOKENS - 1)
    chunked = [rig.sequence("m", prompt, NEW_TOKENS) for prompt in prompts[:4]]
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=120)
    cached = rig.over_prefix(sliced[0], 256, NEW_TOKENS)
    rig.decode([cached], NEW_TOKENS - 1)

    assert_generated(model, alone)
    assert_greedy(model, sliced)
    assert outputs([alone, cached, *chunked], NEW_TOKENS) == outputs([sliced[0], sliced[0], *sliced[:4]], NEW_TOKENS)


@pytest.mark.parametrize("family", [f for f in SERVED if f.traits is not None], ids=lambda family: family.model_type)
def test_native_architecture__both_ways__same_tokens(rig: CpuRig, tmp_path: Path, family: ModelFamily) -> None:
    changes = {} if has_layer_windows(family) else {"sliding_window": None}
    write_tiny_checkpoint(tmp_path, family.model_type, **changes)
    native = CpuRig(pool_mib=16, block_bytes=2048)
    said = []
    for either in (rig, native):
        either.load("m", tmp_path)
        sequences = [either.sequence("m", make_prompt(length, vocab_size=160), NEW_TOKENS) for length in LENGTHS]
        either.prefill(sequences)
        either.decode(sequences, NEW_TOKENS - 1)
        said.append(outputs(sequences, NEW_TOKENS))
    native.close()

    assert said[0] == said[1]


@pytest.mark.parametrize("rope_type", ["longrope", "su", "yarn"])
def test_phi_3__rotated_by_length__is_limited_to_lengths_that_one_batch_rotates_alike(
    rig: CpuRig, tmp_path: Path, rope_type: str
) -> None:
    """By whichever of its names: beyond the length before the scaling a long prompt would change its neighbours."""
    scaling = {"type": rope_type, "original_max_position_embeddings": 64}
    scaling |= {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
    write_tiny_checkpoint(tmp_path, "phi3", original_max_position_embeddings=64, sliding_window=None)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))

    assert rig.load("m", tmp_path, max_rows=1).max_model_len == 64


@pytest.mark.parametrize("model_type", ["gemma2", "gpt2", "gpt_oss", "deepseek_v3"])
def test_model__that_slept__says_the_same(rig: CpuRig, tmp_path: Path, model_type: str) -> None:
    write_tiny_checkpoint(tmp_path, model_type)
    rig.load("m", tmp_path)
    said = []
    for sleeps in (True, False):
        sequence = rig.sequence("m", make_prompt(70, vocab_size=160), NEW_TOKENS)
        rig.prefill([sequence])
        rig.decode([sequence], NEW_TOKENS - 1)
        said += outputs([sequence], NEW_TOKENS)
        if sleeps:
            assert rig.executor.sleep_model("m", 1 << 30) > 0
            rig.executor.detach_model("m")
            rig.wake("m")

    assert said[0] == said[1]


def test_make_faster__products__hold_no_weights_twice() -> None:
    import weakref

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    held = [weakref.ref(module.weight) for module in model.modules() if type(module) is torch.nn.Linear]
    alive: list[int] = []

    class Counting(Linear):
        def __init__(self, *weights: Any, **named: Any) -> None:
            super().__init__(*weights, **named)
            alive.append(sum(weight() is not None for weight in held))

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(faster_modules, "Linear", Counting)
        faster_modules.make_faster(model)

    assert alive == [*range(len(held), 0, -1)]


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_refused_architecture__asked_for__says_why(family: ModelFamily) -> None:
    config = {"architectures": [family.name], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

    with pytest.raises(ModelLoadError, match="SGLang") as refused:
        TransformersConfig.from_config("m", {**config, "vocab_size": 100}, None)

    assert family.refusal in str(refused.value)
    assert family.name in str(refused.value)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("falcon", "0 times"), ("gpt_neox_japanese", "0 times"), ("diffllama", "2 times"), ("jamba", "0 times")],
)
def test_refused_architecture__loaded_all_the_same__is_found_out(
    rig: CpuRig, tmp_path: Path, model_type: str, reason: str
) -> None:
    """What a newer transformers has and no table knows is not served wrongly."""
    write_tiny_checkpoint(tmp_path, model_type)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["GPTNeoXForCausalLM"]}))

    with pytest.raises(ModelLoadError, match=f"AttentionInterface {reason}.*SGLang|backend: sglang"):
        rig.load("m", tmp_path)


@pytest.mark.parametrize("family", SERVED, ids=lambda family: family.model_type)
def test_parameters__by_formula__are_near_those_of_the_model(family: ModelFamily) -> None:
    from transformers import AutoModelForCausalLM

    config = tiny_config(family.model_type, **LARGER, **({} if family.model_type in LATENT else {"head_dim": 128}))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    spec = ModelSpec.from_config({**config.to_dict(), "architectures": [family.name], "dtype": "float32"})

    counted = sum(parameter.numel() for parameter in model.parameters())
    least, most = (0.8, 1.45) if spec.is_moe or family.model_type in LATENT else (0.97, 1.03)
    assert least < spec.num_params / counted < most


def test_causal_language_models_of_transformers__any__are_listed() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = {
        n for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for n in ([name] if isinstance(name, str) else name)
    }
    assert names - set(all_families()) == set()
