"""Greedy and seeded tokens of the CUDA executor's code, run in Triton's interpreter, against the CPU executor's."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES, make_cuda_rig

from pdmux_actor.messages import LogitsProcessing
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.launch import Repartition

MODELS = ("llama", "qwen2", "qwen3")
LENGTHS = (1, 5, 18)
NEW_TOKENS = 5


@pytest.fixture(scope="module")
def rigs(tiny_checkpoints: Mapping[str, Path]) -> Iterator[tuple[CpuRig, CpuRig]]:
    pair = CpuRig(block_bytes=BLOCK_BYTES), make_cuda_rig()
    for rig in pair:
        for model, folder in tiny_checkpoints.items():
            rig.load(model, folder, dtype="float32", max_rows=200)
    yield pair
    for rig in pair:
        rig.close()


@pytest.mark.parametrize("model", MODELS)
def test_prefill_and_decode__batch_of_mixed_lengths__tokens_of_the_cpu(rigs: tuple[CpuRig, CpuRig], model: str) -> None:
    produced = []
    for rig in rigs:
        sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]
        rig.prefill(sequences, layers_per_slice=1)
        rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=2)
        produced.append(outputs(sequences, NEW_TOKENS))

    assert produced[0] == produced[1]


ROPES = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 12,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("rope_type", ROPES)
def test_rotary_scaling__beyond_the_original_length__tokens_of_the_cpu(
    rigs: tuple[CpuRig, CpuRig], tmp_path: Path, rope_type: str
) -> None:
    shape = CheckpointShape(
        model_type="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=48 if rope_type == "longrope" else 12,
        rope_scaling=ROPES[rope_type],
    )
    write_random_checkpoint(tmp_path, shape, seed=3)
    produced = []
    for rig in rigs:
        assert rig.load(rope_type, tmp_path, "float32", max_rows=60, max_model_len=48).max_model_len == 48
        sequences = [rig.sequence(rope_type, make_prompt(length), NEW_TOKENS) for length in (5, 10, 18)]
        rig.prefill(sequences[1:], layers_per_slice=1)
        rig.decode(sequences[1:], NEW_TOKENS - 1, steps_per_launch=2)
        rig.generate_chunked(sequences[:1], NEW_TOKENS, chunk_tokens=3)
        produced.append(outputs(sequences, NEW_TOKENS))

    assert produced[0] == produced[1]


def test_mixed_steps__chunks_beside_decodes__tokens_of_the_cpu(rigs: tuple[CpuRig, CpuRig]) -> None:
    produced = []
    for rig in rigs:
        sequences = [rig.sequence("qwen3", make_prompt(length), NEW_TOKENS) for length in (10, 21)]
        rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens=8)
        produced.append(outputs(sequences, NEW_TOKENS))

    assert produced[0] == produced[1]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "seed": 7},
        {"temperature": 1.2, "top_p": 0.7, "seed": 8},
        {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 9},
        {"logprobs": 3},
        {"min_tokens": 4, "temperature": 0.5, "seed": 1},
        {"min_tokens": 4, "stop_token_ids": tuple(range(0, 600, 2))},
        {"processing": LogitsProcessing(repetition_penalty=1.8), "temperature": 0.7, "seed": 2},
        {"processing": LogitsProcessing(frequency_penalty=1.5, presence_penalty=0.5, logit_bias=((9, 4.0), (3, 4.0)))},
        {"processing": LogitsProcessing(min_p=0.3), "temperature": 1.1, "seed": 3},
        {"processing": LogitsProcessing(min_p=0.2), "temperature": 1.1, "top_k": 40, "top_p": 0.9, "seed": 4},
        {"processing": LogitsProcessing(bad_words=tuple((i,) for i in range(0, 600, 2)))},
    ],
)
def test_sampling__seeded_beside_greedy__tokens_of_the_cpu(
    rigs: tuple[CpuRig, CpuRig], sampling: dict[str, float]
) -> None:
    produced = []
    for rig in rigs:
        sequences = [
            rig.sequence("llama", make_prompt(9), NEW_TOKENS, **sampling),
            rig.sequence("llama", make_prompt(12), NEW_TOKENS),
        ]
        rig.prefill(sequences)
        rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=5)
        produced.append(outputs(sequences, NEW_TOKENS))

    assert produced[0] == produced[1]


def test_logprobs__of_prompt_and_steps__as_the_cpu(rigs: tuple[CpuRig, CpuRig]) -> None:
    reports = []
    for rig in rigs:
        sequence = rig.sequence("llama", make_prompt(9), 3, logprobs=2)
        first = rig.run(rig.prefill_slices([sequence], 1000)[0])
        reports.append(first[0][0])

    cpu, cuda = reports
    assert [token_id for token_id, _ in cuda.top] == [token_id for token_id, _ in cpu.top]
    assert cuda.logprob == pytest.approx(cpu.logprob, abs=1e-4)


def test_repartition__between_launches__lanes_use_its_streams_and_tokens_do_not_change(
    rigs: tuple[CpuRig, CpuRig],
) -> None:
    cpu, cuda = rigs
    produced = []
    for rig in (cpu, cuda):
        sequence = rig.sequence("llama", make_prompt(7), NEW_TOKENS)
        rig.prefill([sequence])
        for decode_sms in (1, 2, 4) if rig is cuda else (1, 1, 2):
            total = rig.executor.device.num_sms
            rig.executor.submit(Repartition(prefill_sms=total - decode_sms, decode_sms=decode_sms))
            rig.decode([sequence], 1)
        rig.executor.submit(Repartition(prefill_sms=rig.executor.device.num_sms, decode_sms=0))
        produced.append(outputs([sequence], 4))

    assert produced[0] == produced[1]
    assert [s.sms for s in cuda.executor._lanes.used[-3:]] == [1, 2, 4]
