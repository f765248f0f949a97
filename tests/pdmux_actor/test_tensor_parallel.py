"""A unit of several ranks says what one of one rank says: gloo on this machine's cores, each other rank a process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_rig import CpuRig, make_device
from rank_rig import BLOCK_BYTES, running

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.packed_batch import DecodeInputs, pack
from pdmux_actor.executor.ranks.rank_frames import BatchOnWire
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.checkpoint import read_json
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.quantised import projection_maker
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.weights import load_weights
from pdmux_actor.scheduling.events import SetPolicy
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.policies.registry import POLICIES

LENGTHS = (1, 150, 33, 64, 7, 97)
# Biases, norms of heads, a tied embedding; one KV head, which both ranks have; mixtures of experts.
SHAPES = {
    "biased": CheckpointShape(
        model_type="qwen2", num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
    ),
    "repeated": CheckpointShape(
        model_type="qwen3", num_layers=3, hidden_size=48, intermediate_size=64, num_heads=4, num_kv_heads=1, head_dim=16
    ),
    "qwen3-moe": CheckpointShape(
        model_type="qwen3_moe",
        num_layers=2,
        hidden_size=64,
        intermediate_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
    ),
    "mixtral": CheckpointShape(
        model_type="mixtral",
        num_layers=2,
        hidden_size=64,
        intermediate_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
    ),
    "gpt-oss": CheckpointShape(
        model_type="gpt_oss",
        num_layers=2,
        hidden_size=64,
        intermediate_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        sliding_window=40,
        attention_bias=True,
    ),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in SHAPES}
    for name, folder in folders.items():
        write_random_checkpoint(folder, SHAPES[name], seed=3)
    return folders


def make_requests(policy: str) -> list[GenerateRequest]:
    """Every third samples with a seed. Of the second model's prompts, one begins as another."""
    return [
        GenerateRequest(
            request_id=f"{policy}/{model}/{place}",
            model=model,
            prompt_token_ids=tuple((3 * i + (place > 2)) % 200 + 20 for i in range(length)),
            sampling=SamplingParams(
                max_tokens=6, temperature=0.7 if place % 3 == 2 else 0.0, seed=place, ignore_eos=True
            ),
            slo=Slo(ttft_s=5.0, tbt_s=1.0),
        )
        for model in SHAPES
        for place, length in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def expected(checkpoints):
    with running(checkpoints, 1) as (run, _):
        return run.answers(make_requests("alone"))


@pytest.fixture(scope="module")
def unit_of_two(checkpoints):
    with running(checkpoints, 2) as unit:
        yield unit


@pytest.mark.parametrize("policy", POLICIES)
def test_two_ranks__any_policy__say_what_one_says(unit_of_two, expected, policy: str) -> None:
    run, _ = unit_of_two

    assert run.answers(make_requests(policy), SetPolicy(policy)) == expected

    report = run.loop.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == report.total_blocks


def test_two_ranks__blocks_of_a_row__are_counted_as_plans_do(unit_of_two, checkpoints) -> None:
    run, executor = unit_of_two

    assert executor.total_blocks == (48 << 20) // BLOCK_BYTES
    loads = {m.model: m.quota_blocks for m in run.loop.scheduler.load_report().models}
    # 4,000 tokens in rows of 16: layers x KV heads blocks, of one KV head as many as there are ranks
    assert loads == {
        "biased": 250 * 2 * 2,
        "repeated": 250 * 3 * 2,
        "qwen3-moe": 250 * 2 * 2,
        "mixtral": 250 * 2 * 2,
        "gpt-oss": 250 * 2 * 2,
    }


def test_two_ranks__model_sleeps_and_wakes__says_the_same(unit_of_two, expected) -> None:
    run, executor = unit_of_two
    of_model = [r for r in make_requests("woken") if r.model == "biased"]

    assert executor.sleep_model("biased", 1 << 30) > 0
    run.detach("biased")
    run.attach(executor.wake_model("biased"))

    said = run.answers(of_model)
    assert said == {name: tokens for name, tokens in expected.items() if name.startswith("biased/")}


def prompt_logprobs_of(run, model="biased"):
    request = GenerateRequest(
        request_id=f"asked/{model}/0",
        model=model,
        prompt_token_ids=tuple(range(30, 60)),
        sampling=SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=2),
        slo=Slo(ttft_s=5.0, tbt_s=1.0),
    )
    run.answers([request])
    return [found.logprob for found in run.prompt_logprobs]


def test_two_ranks__log_probabilities_of_a_prompt__are_those_of_one(checkpoints, unit_of_two) -> None:
    """The head is asked for more than what is sampled from."""
    of_two = prompt_logprobs_of(unit_of_two[0])
    with running(checkpoints, 1) as (alone, _):
        of_one = prompt_logprobs_of(alone)

    assert len(of_two) == 29
    assert of_two == pytest.approx(of_one, abs=1e-4)


def test_two_ranks__model_that_cannot_be_divided__names_the_field_and_others_serve_on(
    unit_of_two, expected, tmp_path: Path
) -> None:
    run, executor = unit_of_two
    odd = CheckpointShape(
        model_type="llama", num_layers=1, hidden_size=32, intermediate_size=33, num_heads=4, num_kv_heads=2, head_dim=8
    )
    write_random_checkpoint(tmp_path, odd, seed=0)

    with pytest.raises(ModelLoadError, match=r"intermediate_size=33 cannot be divided among 2 ranks.*mesh_gpus"):
        executor.load_model(ModelSource(model="odd", source=str(tmp_path)))

    assert run.answers(make_requests("after")) == expected


def test_two_ranks__weights_in_4_bits__say_what_one_says(unit_of_two, tmp_path: Path) -> None:
    shape = replace(SHAPES["biased"], hidden_size=128, intermediate_size=256, head_dim=64)
    write_random_checkpoint(tmp_path, shape, seed=4)
    requests = [
        replace(r, model="int4", request_id=f"q/{r.request_id}") for r in make_requests("4") if r.model == "biased"
    ]

    of_two = loaded_answers(*unit_of_two, tmp_path, "int4", requests)
    with running({}, 1) as alone:
        assert loaded_answers(*alone, tmp_path, "int4", requests) == of_two


def test_two_ranks__weights_in_8_bits__say_nearly_what_one_says(unit_of_two, tmp_path: Path) -> None:
    """A rank rounds its own part of a token's activations, with a scale of its own."""
    write_random_checkpoint(tmp_path, SHAPES["biased"], seed=4)

    found = []
    with running({}, 1) as alone:
        for run, executor in (unit_of_two, alone):
            loaded_answers(run, executor, tmp_path, "int8", [])
            found.append(prompt_logprobs_of(run, "int8"))

    of_two, of_one = found
    assert len(of_two) == 29
    assert of_two == pytest.approx(of_one, abs=0.3)  # 0.12 was seen


def loaded_answers(run, executor, folder, weights, requests):
    info = executor.load_model(ModelSource(model=weights, source=str(folder), max_model_len=512, weights=weights))
    run.attach(info)
    return run.answers(requests) if requests else {}


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_load_weights__rounded__parts_have_the_levels_of_the_whole(tmp_path: Path, weights: str) -> None:
    shape = replace(SHAPES["biased"], hidden_size=256, intermediate_size=256, head_dim=64)
    write_random_checkpoint(tmp_path, shape, seed=4)
    config = DecoderConfig.from_config("m", read_json("m", tmp_path, "config.json"), None, weights)
    make = projection_maker(weights)

    whole = load_weights("m", tmp_path, config, make_projection=make).layers[0]
    parts = [
        load_weights("m", tmp_path, config, make_projection=make, share=RankShare(rank=rank, num_ranks=2)).layers[0]
        for rank in range(2)
    ]

    assert torch.equal(torch.cat([p.output.weight for p in parts], dim=1), whole.output.weight)
    down = [p.feed_forward.down.weight for p in parts]
    assert torch.equal(torch.cat(down, dim=1), whole.feed_forward.down.weight)
    gates = [p.feed_forward.gate_up.weight[:128] for p in parts]
    assert torch.equal(torch.cat(gates), whole.feed_forward.gate_up.weight[:256])


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_load_weights__parts_of_all_ranks__are_the_whole(checkpoints, num_ranks: int) -> None:
    folder = checkpoints["biased"]
    config = DecoderConfig.from_config("m", read_json("m", folder, "config.json"), None)
    whole = load_weights("m", folder, config)

    parts = [
        load_weights("m", folder, config, share=RankShare(rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)
    ]

    for index, layer in enumerate(whole.layers):
        of_ranks = [part.layers[index] for part in parts]
        assert torch.equal(torch.cat([p.output.weight for p in of_ranks], dim=1), layer.output.weight)
        down = [p.feed_forward.down.weight for p in of_ranks]
        assert torch.equal(torch.cat(down, dim=1), layer.feed_forward.down.weight)
        assert [p.output.bias for p in of_ranks[1:]] == [None] * (num_ranks - 1)
        queries = [p.qkv.weight[: 64 // num_ranks] for p in of_ranks]
        assert torch.equal(torch.cat(queries), layer.qkv.weight[:64])
        keys = [p.qkv.weight[64 // num_ranks :][:16] for p in of_ranks]  # a head of 16 each, two ranks may have one
        assert torch.equal(torch.cat(keys[:: num_ranks // 2]), layer.qkv.weight[64:96])
        assert torch.equal(keys[0], keys[num_ranks // 2 - 1])
    assert torch.equal(torch.cat([p.lm_head.weight for p in parts]), whole.lm_head.weight)


def test_batch_on_wire__any_batch__arrives_as_it_was(checkpoints) -> None:
    rig = CpuRig(executor=TorchCpuExecutor(kv_pool_bytes=8 << 20, block_bytes=4096, device=make_device()))
    info = rig.load("biased", checkpoints["biased"], "float32")
    prompt, decoding = rig.sequence("biased", range(40), 4), rig.sequence("biased", range(70), 4)
    tokens_per_row = info.geometry.tokens_per_row
    decodes = DecodeInputs.of([decoding])
    batch = pack(
        [Chunk(prompt, 0, 40)],
        decodes,
        decodes.last_tokens([decoding]),
        step=0,
        tokens_per_row=tokens_per_row,
        max_group_rows=100,
    )
    table, arrived = rig._tables["biased"], np.zeros_like(rig._tables["biased"])

    wire = BatchOnWire.of(batch, table)
    wire.note_blocks(arrived)
    received = wire.batch(tokens_per_row)

    assert torch.equal(received.token_ids, batch.token_ids)
    assert torch.equal(received.positions, batch.positions)
    assert torch.equal(received.token_offsets, batch.token_offsets)
    assert np.array_equal(received.token_rows, batch.token_rows)
    assert np.array_equal(received.fresh_rows, batch.fresh_rows)
    assert np.array_equal(received.chunks[0].rows, batch.chunks[0].rows)
    assert np.array_equal(received.decodes[0].rows, batch.decodes[0].rows)
    assert received.prompts == batch.prompts
    assert np.array_equal(arrived[prompt.rows[: 40 // tokens_per_row]], table[prompt.rows[: 40 // tokens_per_row]])


def test_block_pool__blocks_of_several_ranks__are_named_once_and_all_counted() -> None:
    pool = BlockPool(96, num_ranks=2)
    table = pool.add_model("m", KvGeometry(blocks_per_row=8, tokens_per_row=16), 96)

    rows = pool.allocate_rows("m", 5)

    assert rows is not None
    assert table.shape == (12, 4)
    assert table[rows].max() < 48
    assert pool.used_blocks("m") == 40
    assert pool.free_blocks == 56
    pool.check_integrity()
    pool.free_rows("m", rows)
    pool.check_integrity()
    pool.remove_model("m")
    pool.resize(64)
    assert pool.free_blocks == 64
    pool.check_integrity()
