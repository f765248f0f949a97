"""Fused steps whose layers are graphs around their attention: when, and with the tokens of launches one by one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import NUM_SMS, make_cuda_rig, rest

from pdmux_actor.executor.cuda.graph_key import OF_TOKENS, PIECES
from pdmux_actor.executor.cuda.launch_buckets import host_bound_tokens
from pdmux_actor.executor.cuda.piece_bucket import PieceBucket, may_run_in_pieces
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.launch import Chunk, Lane, MixedStep
from placement.launch_limits import LaunchLimits

NEW_TOKENS = 4


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bucket of each step that ran from graphs."""
    sizes: list[int] = []
    run = PieceBucket.run

    def noted(self: PieceBucket, *arguments: object) -> object:
        sizes.append(self.size)
        return run(self, *arguments)

    monkeypatch.setattr(PieceBucket, "run", noted)
    return sizes


def open_rig(checkpoints: Mapping[str, Path], model: str = "llama", **options: object) -> CpuRig:
    rig = make_cuda_rig(**{"captures_prompts": True, **options})
    rig.load(model, checkpoints[model])
    return rig


def chunked(rig: CpuRig, model: str, lengths: Sequence[int], **sampling: object) -> list[object]:
    sequences = [rig.sequence(model, make_prompt(n), NEW_TOKENS, **sampling) for n in lengths]
    rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens=8)
    return outputs(sequences, NEW_TOKENS)


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
def test_mixed_steps__of_captured_pieces__tokens_of_the_cpu(
    tiny_checkpoints: Mapping[str, Path], replayed: list[int], model: str
) -> None:
    cpu, rig = CpuRig(), open_rig(tiny_checkpoints, model)
    cpu.load(model, tiny_checkpoints[model])
    chunked(rig, model, [10, 21, 5])
    assert replayed == []  # no launch waits for a capture
    rest(rig)

    produced = chunked(rig, model, [10, 21, 5])  # chunks behind prefixes, decodes beside them, steps of decodes alone

    assert produced == chunked(cpu, model, [10, 21, 5])
    assert set(replayed) == {16}
    assert rig.executor.graph_facts["prompt_graphs_that_failed"] == 0
    assert rig.executor.arena_facts["beside_arena_bytes"] == 0
    rig.close()


def test_mixed_steps__larger_one_before__its_padding_is_not_seen(
    tiny_checkpoints: Mapping[str, Path], replayed: list[int]
) -> None:
    rig = open_rig(tiny_checkpoints)
    first = chunked(rig, "llama", [3])
    rest(rig)
    chunked(rig, "llama", [16, 15, 14])

    assert chunked(rig, "llama", [3]) == first
    assert replayed
    rig.close()


def test_mixed_steps__drawn_and_reported__as_launch_by_launch(
    tiny_checkpoints: Mapping[str, Path], replayed: list[int]
) -> None:
    rig = open_rig(tiny_checkpoints, "qwen3")
    settings = {"temperature": 0.9, "seed": 3, "logprobs": 2}
    one_by_one = chunked(rig, "qwen3", [9, 12], **settings)
    rest(rig)

    assert chunked(rig, "qwen3", [9, 12], **settings) == one_by_one
    assert replayed
    rig.close()


def test_mixed_steps__host_that_bounds_none__are_not_captured(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = open_rig(tiny_checkpoints, captures_prompts=False)

    chunked(rig, "llama", [9])
    rest(rig)

    assert not any(key.part == PIECES for key in rig.executor._graphs._graphs)
    rig.close()


def test_mixed_steps__buckets_of_a_model__share_their_buffers_and_have_products_as_prompts(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = open_rig(tiny_checkpoints)
    model = rig.executor._attached["llama"]

    assert model.piece_bucket(16).buffers is model.piece_bucket(256).buffers
    chunked(rig, "llama", [9])

    # The first chunks were fused, then tokens were decoded by fused steps, too.
    assert set(rig.executor._lanes.products) == {Lane.PREFILL}
    rig.close()


def test_capture__pieces_when_the_budget_is_spent__leave_decode_its_graphs(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    steps_of_decode = 6
    rig = open_rig(tiny_checkpoints, budget_bytes=steps_of_decode << 20, graph_bytes=1 << 20)
    for count in (1, 2, 4):
        sequences = [rig.sequence("llama", make_prompt(5), 3) for _ in range(count)]
        rig.prefill(sequences)
        rig.decode(sequences, 2)
        rest(rig)
    held = {key for key in rig.executor._graphs._graphs if key.part not in OF_TOKENS}
    assert len(held) > 2

    for _ in range(3):
        chunked(rig, "llama", [9, 4])
        rest(rig)

    assert {key for key in rig.executor._graphs._graphs if key.part not in OF_TOKENS} >= held
    rig.close()


def test_mixed_steps__lanes_never_idle__pieces_are_captured_by_steps_that_lack_them(
    tiny_checkpoints: Mapping[str, Path], replayed: list[int]
) -> None:
    """A fused step follows the other on a busy unit: no moment without launches comes."""
    rig = open_rig(tiny_checkpoints)
    produced = [chunked(rig, "llama", [10])]
    assert rig.executor._graphs._capture.count == 0  # few steps of that bucket went by
    while not replayed:
        produced.append(chunked(rig, "llama", [10]))
        assert len(produced) < 20

    pieces = 2 + 2 * rig.executor._attached["llama"].info.spec.num_layers
    assert rig.executor._graphs._capture.count == rig.executor.graph_facts["graphs_in_traffic"] == pieces
    assert all(tokens == produced[0] for tokens in [*produced, chunked(rig, "llama", [10])])
    rig.close()


def test_attach_model__policy_fuses__has_pieces_on_the_whole_device_before_its_first_step(
    tiny_checkpoints: Mapping[str, Path], replayed: list[int]
) -> None:
    limits = LaunchLimits(batch_tokens=64, sequences=1)
    for fuses in (True, False):
        rig = make_cuda_rig(captures_prompts=True, captures_ahead=True, fuses=fuses, launch_limits=limits)
        info = rig.executor.load_model(ModelSource(model="llama", source=str(tiny_checkpoints["llama"])))
        rig.executor._eager_layer_s = 64 / host_bound_tokens(info.spec, rig.executor.device, 1.0)
        rig._attach(info, 400)
        pieces = {(key.sms, key.bucket) for key in rig.executor._graphs._graphs if key.part == PIECES}
        assert pieces == ({(NUM_SMS, 16), (NUM_SMS, 32), (NUM_SMS, 64)} if fuses else set())

        chunked(rig, "llama", [10, 21, 5])
        assert bool(replayed) == fuses
        replayed.clear()
        rig.close()


def test_may_run_in_pieces__adapters_and_own_frequencies__do_not(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = open_rig(tiny_checkpoints)
    plain = rig.sequence("llama", make_prompt(9), 1)
    adapted = rig.sequence("llama", make_prompt(9), 1, base="llama")

    def step(*sequences: object) -> MixedStep:
        return MixedStep(model="llama", chunks=(Chunk(plain, 0, 9),), sequences=sequences)

    assert may_run_in_pieces(step(), None)
    assert not may_run_in_pieces(step(adapted), None)
    assert may_run_in_pieces(step(), 9)
    assert not may_run_in_pieces(step(), 8)
    rig.close()
