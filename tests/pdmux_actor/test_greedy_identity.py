"""Greedy tokens are those of transformers' generate, however the work is cut up (invariant 6)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from tiny_models import has_layer_windows
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from transformers_greedy import greedy_tokens

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.launch import DecodeStep
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.families.registry import FAMILIES

NEW_TOKENS = 16
LENGTHS = (1, 700, 64, 2, 15, 16, 17, 3, 400, 7, 8, 9, 129, 31, 255, 100, 513)
DEMOS = ("demo-llama", "demo-qwen2", "demo-qwen3")

TINY = {"num_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
OF_FAMILIES = {
    f"{family.model_type}{'-bias' if bias else ''}": (family, bias)
    for family in FAMILIES.values()
    for bias in (False, True)
    if family.traits is not None
}
OTHERS: Mapping[str, CheckpointShape] = {
    "mistral-window": CheckpointShape(model_type="mistral", sliding_window=1024, **TINY),
    "tied": CheckpointShape(model_type="qwen2", tie_word_embeddings=True, **TINY),
    "mlp-bias": CheckpointShape(model_type="llama", mlp_bias=True, **TINY),
    "rope-linear": CheckpointShape(model_type="llama", rope_scaling={"rope_type": "linear", "factor": 4.0}, **TINY),
    "rope-llama3": CheckpointShape(model_type="llama", rope_theta=500_000.0, rope_scaling=LLAMA3_SCALING, **TINY),
    "rope-yarn": CheckpointShape(
        model_type="qwen3",
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        **TINY,
    ),
}

Reference = Callable[[Path, Sequence[TokenSequence]], list[list[int]]]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """NEW_TOKENS ids with which transformers goes on, for each sequence of a checkpoint."""
    transformers_logging.disable_progress_bar()

    @cache
    def model_of(folder: Path):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    known: dict[tuple[Path, tuple[int, ...]], list[int]] = {}

    def continuations(folder: Path, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        found = []
        for sequence, said in zip(sequences, outputs(sequences, NEW_TOKENS), strict=True):
            prompt = tuple(sequence.token_ids[: sequence.num_prompt_tokens])
            if (folder, prompt) not in known:
                known[folder, prompt] = greedy_tokens(model_of(folder), prompt, NEW_TOKENS, likely=said)
            found.append(known[folder, prompt])
        return found

    return continuations


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig(poisoned=True)
    yield rig
    rig.close()


@pytest.mark.parametrize("batch_size", [1, 4, 17])
@pytest.mark.parametrize("model", DEMOS)
def test_whole_prefill_and_single_steps__any_batch__match_transformers(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], reference: Reference, model: str, batch_size: int
) -> None:
    rig.load(model, demo_checkpoints[model])
    prompts = [make_prompt(length) for length in LENGTHS[-batch_size:]]
    sequences = [rig.sequence(model, prompt, NEW_TOKENS) for prompt in prompts]

    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1)

    assert outputs(sequences, NEW_TOKENS) == reference(demo_checkpoints[model], sequences)


@pytest.mark.parametrize("layers_per_slice", [1, 2])
@pytest.mark.parametrize("model", DEMOS)
def test_layer_sliced_prefill_and_look_ahead__batch_of_17__match_transformers(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], reference: Reference, model: str, layers_per_slice: int
) -> None:
    rig.load(model, demo_checkpoints[model])
    prompts = [make_prompt(length) for length in LENGTHS]
    sequences = [rig.sequence(model, prompt, NEW_TOKENS) for prompt in prompts]

    rig.prefill(sequences, layers_per_slice)
    rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=6)

    assert outputs(sequences, NEW_TOKENS) == reference(demo_checkpoints[model], sequences)


@pytest.mark.parametrize("chunk_tokens", [13, 96])
@pytest.mark.parametrize("model", DEMOS)
def test_chunked_prefill_fused_with_decode__batch_of_17__match_transformers(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], reference: Reference, model: str, chunk_tokens: int
) -> None:
    rig.load(model, demo_checkpoints[model])
    prompts = [make_prompt(length) for length in LENGTHS]
    sequences = [rig.sequence(model, prompt, NEW_TOKENS) for prompt in prompts]

    rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens)

    assert outputs(sequences, NEW_TOKENS) == reference(demo_checkpoints[model], sequences)


def shape_of(variant: str) -> CheckpointShape:
    if variant not in OF_FAMILIES:
        return OTHERS[variant]
    family, bias = OF_FAMILIES[variant]
    window = 40 if has_layer_windows(family) else None  # transformers' generate needs one there
    return CheckpointShape(model_type=family.model_type, attention_bias=bias, sliding_window=window, **TINY)


@pytest.mark.parametrize("variant", [*OF_FAMILIES, *OTHERS])
def test_variants__prompts_of_1_to_700_tokens__match_transformers(
    rig: CpuRig, tmp_path: Path, reference: Reference, variant: str
) -> None:
    write_random_checkpoint(tmp_path, shape_of(variant), seed=5)
    rig.load(variant, tmp_path)
    prompts = [make_prompt(length) for length in (1, 50, 700)]
    sequences = [rig.sequence(variant, prompt, NEW_TOKENS) for prompt in prompts]

    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=NEW_TOKENS)

    assert outputs(sequences, NEW_TOKENS) == reference(tmp_path, sequences)


def test_yarn__asked_for_more_than_the_config_names__matches_transformers_beyond_it(
    rig: CpuRig, tmp_path: Path, reference: Reference
) -> None:
    """As Qwen's model cards switch it on: `max_position_embeddings` stays at the length before the scaling."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    shape = CheckpointShape(model_type="qwen3", max_position_embeddings=128, rope_scaling=scaling, **TINY)
    write_random_checkpoint(tmp_path, shape, seed=5)
    assert rig.load("by default", tmp_path, max_rows=1).max_model_len == 128
    assert rig.load("far too long", tmp_path, max_rows=1, max_model_len=10_000).max_model_len == 512

    assert rig.load("yarn", tmp_path, max_model_len=512).max_model_len == 512
    prompts = [make_prompt(length) for length in (50, 120, 130, 480)]
    sequences = [rig.sequence("yarn", prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=4)

    assert outputs(sequences, NEW_TOKENS) == reference(tmp_path, sequences)


LENGTH_DEPENDENT_ROPE: Mapping[str, Mapping[str, object]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 128,
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.0 + 0.8 * i for i in range(8)],
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("chunk_tokens", [None, 90])
@pytest.mark.parametrize("rope_type", LENGTH_DEPENDENT_ROPE)
def test_rotation_by_length__prompts_around_and_beyond_the_original_length__match_transformers(
    rig: CpuRig, tmp_path: Path, rope_type: str, chunk_tokens: int | None
) -> None:
    """120 tokens grow beyond it in decoding. A model for each prompt: that of transformers remembers lengths."""
    named = 128 if rope_type == "dynamic" else 512
    scaling = LENGTH_DEPENDENT_ROPE[rope_type]
    shape = CheckpointShape(model_type="llama", max_position_embeddings=named, rope_scaling=scaling, **TINY)
    write_random_checkpoint(tmp_path, shape, seed=5)
    info = rig.load(rope_type, tmp_path, max_model_len=512)
    prompts = [make_prompt(length) for length in (50, 120, 128, 129, 300, 470)]
    sequences = [rig.sequence(rope_type, prompt, NEW_TOKENS) for prompt in prompts]

    if chunk_tokens is None:
        rig.prefill(sequences, layers_per_slice=2)
        rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=4)
    else:
        rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens)

    assert (info.max_model_len, info.own_kv_beyond_tokens) == (512, 128)
    assert outputs(sequences, NEW_TOKENS) == [_fresh_continuation(tmp_path, prompt) for prompt in prompts]


def _fresh_continuation(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return greedy_tokens(model, prompt, NEW_TOKENS)


@pytest.mark.parametrize("model", DEMOS)
def test_log_probabilities__prefill_and_every_decode_step__match_transformers(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], model: str
) -> None:
    """Stricter than tokens: one key too many or too few shows here long before it changes an argmax."""
    rig.load(model, demo_checkpoints[model])
    sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS, logprobs=3) for length in (1, 6, 31, 100)]

    rig.prefill(sequences)
    launch = DecodeStep(model=model, sequences=tuple(sequences))
    reported = [rig.run(launch) for _ in range(NEW_TOKENS - 1)]

    truth = AutoModelForCausalLM.from_pretrained(demo_checkpoints[model], dtype=torch.float32)
    for place, sequence in enumerate(sequences):
        with torch.inference_mode():
            logprobs = truth(torch.tensor([sequence.token_ids])).logits[0].log_softmax(-1)
        for step, tokens in enumerate(reported):
            token = tokens[place][0]
            expected = logprobs[sequence.num_prompt_tokens + step]
            assert token.logprob == pytest.approx(expected[token.token_id].item(), abs=2e-4)
            assert [value for _, value in token.top] == pytest.approx(expected.topk(3).values.tolist(), abs=2e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.03)])
def test_half_precision__log_probabilities__stay_near_float32(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], dtype: str, tolerance: float
) -> None:
    rig.load("half", demo_checkpoints["demo-qwen3"], dtype=dtype)
    sequence = rig.sequence("half", make_prompt(90), NEW_TOKENS, logprobs=0)

    rig.prefill([sequence], layers_per_slice=2)
    reported = [rig.run(DecodeStep(model="half", sequences=(sequence,)))[0][0] for _ in range(NEW_TOKENS - 1)]

    truth = AutoModelForCausalLM.from_pretrained(demo_checkpoints["demo-qwen3"], dtype=torch.float32)
    with torch.inference_mode():
        logprobs = truth(torch.tensor([sequence.token_ids])).logits[0].log_softmax(-1)[sequence.num_prompt_tokens :]
    expected = [logprobs[step, token.token_id].item() for step, token in enumerate(reported)]
    assert [token.logprob for token in reported] == pytest.approx(expected, abs=tolerance)


def test_chunk_over_long_prefix__several_query_tiles__matches_transformers(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path], reference: Reference
) -> None:
    rig.load("demo-llama", demo_checkpoints["demo-llama"])
    prompt = make_prompt(1500)
    sequence = rig.sequence("demo-llama", prompt, NEW_TOKENS)

    rig.generate_chunked([sequence], NEW_TOKENS, chunk_tokens=700)

    assert outputs([sequence], NEW_TOKENS) == reference(demo_checkpoints["demo-llama"], [sequence])


@pytest.mark.parametrize("block_bytes", [1024, 4096, 5000])
def test_models_of_different_head_sizes__interleaved_in_one_pool__match_transformers(
    demo_checkpoints: Mapping[str, Path], reference: Reference, block_bytes: int
) -> None:
    rig = CpuRig(block_bytes=block_bytes)
    batches = {}
    for model in DEMOS:
        rig.load(model, demo_checkpoints[model], max_rows=800)
        batches[model] = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in (5, 90, 33)]

    for model in DEMOS:
        rig.prefill(batches[model], layers_per_slice=2)
    for _ in range(NEW_TOKENS - 1):
        for model in DEMOS:
            rig.decode(batches[model], 1)
    rig.close()

    for model in DEMOS:
        assert outputs(batches[model], NEW_TOKENS) == reference(demo_checkpoints[model], batches[model])
