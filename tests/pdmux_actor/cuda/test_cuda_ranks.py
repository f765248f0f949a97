"""Two ranks of the CUDA executor's code, in Triton's interpreter, say what the CPU executor says alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES
from device_ranks import PipeLink, RanksRig, two_device_ranks

from pdmux_actor.errors import DeviceUnavailable, ModelLoadError
from pdmux_actor.executor.ranks import lane_group
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.rank_buckets import LeadingLane
from pdmux_actor.executor.ranks.rank_frames import HeadPass, RankSettings
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.scheduling.launch import DecodePart, DecodeStep, DropPrefill, Repartition
from pdmux_actor.serving import cuda_ranks
from pdmux_actor.serving.cuda_ranks import gpus_of_ranks
from placement.launch_limits import DEFAULT_LIMITS
from profiler.gpus.h200 import DEVICE as H200

MODELS = ("llama", "qwen2", "qwen3")
LENGTHS = (1, 5, 18)
NEW_TOKENS = 5


@pytest.fixture(scope="module")
def ranks(
    tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RanksRig, PipeLink]]:
    with two_device_ranks(tmp_path_factory.mktemp("ranks")) as (rig, link):
        for model in MODELS:
            rig.load(model, tiny_checkpoints[model], dtype="float32", max_rows=200)
        yield rig, link


@pytest.fixture(scope="module")
def rigs(tiny_checkpoints: Mapping[str, Path], ranks: tuple[RanksRig, PipeLink]) -> Iterator[tuple[CpuRig, RanksRig]]:
    alone = CpuRig(block_bytes=BLOCK_BYTES)
    for model in MODELS:
        alone.load(model, tiny_checkpoints[model], dtype="float32", max_rows=200)
    yield alone, ranks[0]
    alone.close()


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks__sliced_prefill_and_look_ahead_decode__tokens_of_one(
    rigs: tuple[CpuRig, RanksRig], model: str
) -> None:
    produced = []
    for rig in rigs:
        sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]
        rig.prefill(sequences, layers_per_slice=1)
        rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=2)
        produced.append(outputs(sequences, NEW_TOKENS))

    assert produced[0] == produced[1]


def test_two_ranks__chunks_beside_decodes_with_seeds_and_log_probabilities__tokens_of_one(
    rigs: tuple[CpuRig, RanksRig],
) -> None:
    produced = []
    for rig in rigs:
        seeded = [rig.sequence("llama", make_prompt(9), NEW_TOKENS, temperature=0.8, seed=3, top_p=0.9)]
        told = [rig.sequence("qwen3", make_prompt(7), NEW_TOKENS, logprobs=2)]
        rig.generate_chunked(seeded, NEW_TOKENS, chunk_tokens=4)
        rig.prefill(told, layers_per_slice=2)
        rig.decode(told, NEW_TOKENS - 1, steps_per_launch=2)
        produced.append((outputs(seeded, NEW_TOKENS), outputs(told, NEW_TOKENS)))

    assert produced[0] == produced[1]


def test_two_ranks__decode_on_parts_of_its_share_and_a_dropped_prefill__tokens_of_one(
    rigs: tuple[CpuRig, RanksRig],
) -> None:
    alone, ranks = rigs
    expected = [alone.sequence("qwen2", make_prompt(11), NEW_TOKENS)]
    alone.prefill(expected)
    alone.decode(expected, NEW_TOKENS - 1)
    ranks.executor.submit(Repartition(prefill_sms=2, decode_sms=2))
    dropped = ranks.prefill_slices([ranks.sequence("llama", make_prompt(6), 1)], layers_per_slice=1)[0]
    ranks.run(dropped)
    ranks.executor.submit(DropPrefill(batch_id=dropped.batch_id))

    sequences = [ranks.sequence("qwen2", make_prompt(11), NEW_TOKENS)]
    ranks.prefill(sequences)
    for first_sm in range(2):  # a lane of its own each
        part = DecodePart(index=first_sm, first_sm=first_sm, sms=1)
        ranks.run(DecodeStep(model="qwen2", sequences=tuple(sequences), steps=2, part=part))

    assert outputs(sequences, NEW_TOKENS) == outputs(expected, NEW_TOKENS)
    ranks.executor.submit(Repartition(prefill_sms=2, decode_sms=2))


def test_two_ranks__model_sleeps_and_wakes__says_the_same(
    rigs: tuple[CpuRig, RanksRig], tiny_checkpoints: Mapping[str, Path]
) -> None:
    rig = rigs[1]
    said = []
    for turn in ("new", "woken"):
        if turn == "new":
            rig.load("sleeper", tiny_checkpoints["llama"], dtype="float32", max_rows=20)
        else:
            rig.executor.sleep_model("sleeper", 1 << 30)
            rig.executor.detach_model("sleeper")
            rig.wake("sleeper", max_rows=20)
        sequences = [rig.sequence("sleeper", make_prompt(8), NEW_TOKENS)]
        rig.prefill(sequences)
        rig.decode(sequences, NEW_TOKENS - 1)
        said.append(outputs(sequences, NEW_TOKENS))
    rig.executor.detach_model("sleeper")

    assert said[0] == said[1]


def test_gpus_of_ranks__what_ray_gave_the_actor__one_for_each_rank() -> None:
    assert gpus_of_ranks("3,GPU-8f2,5,6", 4) == ("3", "GPU-8f2", "5", "6")
    assert gpus_of_ranks(None, 2) == ("0", "1")
    with pytest.raises(
        DeviceUnavailable, match=r"a unit of 4 ranks has 2 GPUs \(CUDA_VISIBLE_DEVICES=0,1\).*mesh_gpus"
    ):
        gpus_of_ranks("0,1", 4)


class Started:
    """Stands for RankProcesses."""

    def __init__(self, settings, environments) -> None:
        self.num_ranks = len(settings) + 1
        self.settings, self.environments = settings, environments


@pytest.mark.parametrize("link_bandwidth_bytes_per_s", [0.0, 310e9])
def test_open__unit_of_two_gpus__each_rank_has_its_own_and_half_of_the_pool(
    monkeypatch: pytest.MonkeyPatch, link_bandwidth_bytes_per_s: float
) -> None:
    """What needs GPUs is replaced: NCCL, the device, and the other process."""
    opened: dict[str, object] = {}
    device = replace(H200, link_bandwidth_bytes_per_s=link_bandwidth_bytes_per_s)
    own = SimpleNamespace(
        device=device, block_bytes=4096, total_blocks=100, unpartitioned_reason=None, memory_is_host=False
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,7")
    monkeypatch.setattr(cuda_ranks, "check_cuda_devices", lambda count: opened.update(count=count))
    monkeypatch.setattr(cuda_ranks, "open_cuda_device", lambda: None)
    monkeypatch.setattr(cuda_ranks, "RankProcesses", Started)
    monkeypatch.setattr(
        cuda_ranks, "open_lane_groups", lambda *args, by_nccl: opened.update(nccl=by_nccl) or ("group",)
    )
    monkeypatch.setattr(lane_group, "measured_links", lambda *args, settle: replace(device, memory_bytes=1))
    monkeypatch.setattr(cuda_ranks, "open_cuda_executor", lambda **given: opened.update(given) or own)

    executor = cuda_ranks.open_tensor_parallel_cuda_executor(
        num_ranks=2,
        num_lanes=2,
        kv_pool_bytes=1 << 20,
        block_bytes=4096,
        default_dtype="bfloat16",
        divides_decode=False,
        launch_limits=DEFAULT_LIMITS,
    )

    link = executor._link
    assert link.environments == [{"CUDA_VISIBLE_DEVICES": "7"}]
    (settings,) = link.settings
    assert (settings.rank, settings.num_ranks, settings.kv_pool_bytes, settings.device) == (1, 2, 1 << 19, None)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=RankSettings) == settings
    assert (opened["count"], opened["nccl"], opened["captures"], opened["kv_pool_bytes"]) == (2, True, False, 1 << 19)
    assert opened["share"] == RankShare(rank=0, num_ranks=2)
    assert (executor.total_blocks, executor.device.memory_bytes) == (200, H200.memory_bytes)
    assert executor.memory_is_host is False


def test_lane_group__by_nccl__works_on_the_current_stream() -> None:
    """Where it has nothing to say, as NCCL does then."""
    asked = []

    class Group:
        def allreduce(self, tensors, options):
            asked.append(options.asyncOp)

        def broadcast(self, tensors, options):
            asked.append(options.asyncOp)

        def gather(self, outputs, tensors, options):
            asked.append((options.asyncOp, options.rootRank, len(outputs)))

    group = LaneGroup(Group(), 1, 2)
    tensor = torch.zeros(2)

    assert group.sum(tensor) is group.from_leader(tensor) is tensor
    assert group.to_leader(tensor) == []
    assert asked == [False, False, (False, 0, 0)]


def test_together__what_fails_there__ends_the_unit() -> None:
    link = SimpleNamespace(told=[], ended=[])
    link.tell, link.end_unit = link.told.append, link.ended.append
    lane = LeadingLane(number=0, link=link, group=None)

    with pytest.raises(ValueError, match="shape"), lane.around_head("m", 3):
        raise ValueError("shape")

    assert link.told == [HeadPass(0, -1, 0, "m", 3)]
    assert link.ended == ["a launch failed on the leading rank: ValueError: shape"]


def test_two_ranks__adapter_or_indivisible_model__is_refused_by_name(
    rigs: tuple[CpuRig, RanksRig], ranks: tuple[RanksRig, PipeLink], tmp_path: Path
) -> None:
    odd = CheckpointShape(
        model_type="llama", num_layers=1, hidden_size=32, intermediate_size=33, num_heads=4, num_kv_heads=2, head_dim=8
    )
    write_random_checkpoint(tmp_path, odd, seed=0)

    with pytest.raises(ModelLoadError, match=r"intermediate_size=33 cannot be divided among 2 ranks.*mesh_gpus"):
        rigs[1].load("odd", tmp_path, dtype="float32")
    with pytest.raises(ModelLoadError, match=r"adapters are not divided.*mesh_gpus: 1"):
        rigs[1].executor.load_adapter("fine", "llama", str(tmp_path), revision=None)
    assert ranks[1].ended == []
