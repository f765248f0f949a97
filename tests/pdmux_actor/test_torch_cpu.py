"""The executor's lanes, failures and isolation of models, with hand-made launches."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_rig import DEADLINE_S, CpuRig, make_device, make_prompt, outputs

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.base import Executor
from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.launch import (
    PREFILL_LANE,
    DecodePart,
    DecodeStep,
    DropPrefill,
    Lane,
    LaunchCompletion,
    PrefillSlice,
    Repartition,
)
from pdmux_actor.scheduling.sequence import TokenSequence

NEW_TOKENS = 10
two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores")


@pytest.fixture
def rig(demo_checkpoints: Mapping[str, Path]) -> Iterator[CpuRig]:
    rig = CpuRig(num_cores=2)
    for model, folder in demo_checkpoints.items():
        rig.load(model, folder)
    yield rig
    rig.close()


def generate(rig: CpuRig, model: str, lengths: tuple[int, ...]) -> list[list[int]]:
    sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in lengths]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


def test_load__end_beyond_the_vocabulary__fails_nobody_who_may_not_end_yet(rig: CpuRig, tmp_path: Path) -> None:
    shape = CheckpointShape(
        model_type="llama", num_layers=1, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=16
    )
    write_random_checkpoint(tmp_path / "m", shape, seed=1)
    ends = [shape.vocab_size - 1, shape.vocab_size, -1]
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    info = rig.load("m", tmp_path / "m")
    sequences = [rig.sequence("m", make_prompt(5), NEW_TOKENS, min_tokens=least) for least in (0, 3)]

    rig.prefill(sequences)

    assert shape.vocab_size - 1 in info.eos_token_ids
    assert [len(s.token_ids) for s in sequences] == [6, 6]


def run_side_by_side(rig: CpuRig, slices: list[PrefillSlice], decoding: list[TokenSequence], num_tokens: int) -> None:
    """Keeps one launch in flight on each lane until both have nothing left."""
    pending: dict[Lane, list] = {
        Lane.PREFILL: list(slices),
        Lane.DECODE: [DecodeStep(model=decoding[0].model, sequences=tuple(decoding)) for _ in range(num_tokens)],
    }
    in_flight = set()
    while in_flight or any(pending.values()):
        for lane in Lane:
            if lane not in in_flight and pending[lane]:
                rig.executor.submit(pending[lane].pop(0))
                in_flight.add(lane)
        done = rig.executor.wait(rig.executor.now() + DEADLINE_S)
        assert done, "no completion before the deadline"
        for completion in done:
            rig.apply(completion)
            in_flight.remove(completion.launch.lane)


def test_executor__cpu__fits_the_protocol(rig: CpuRig) -> None:
    executor: Executor = rig.executor

    assert executor.total_blocks == (32 << 20) // 4096
    assert executor.device.num_sms == 2


@two_cores
@pytest.mark.parametrize(("prefilling", "decoding"), [("demo-qwen3", "demo-llama"), ("demo-qwen2", "demo-qwen2")])
def test_lanes__prefill_beside_decode_on_disjoint_cores__tokens_as_in_serial(
    rig: CpuRig, prefilling: str, decoding: str
) -> None:
    expected_prefilled = generate(rig, prefilling, (300, 40))
    expected_decoded = generate(rig, decoding, (20, 90, 7))
    rig.executor.submit(Repartition(prefill_sms=1, decode_sms=1))
    decoded = [rig.sequence(decoding, make_prompt(length), NEW_TOKENS) for length in (20, 90, 7)]
    prefilled = [rig.sequence(prefilling, make_prompt(length), NEW_TOKENS) for length in (300, 40)]
    rig.prefill(decoded)

    run_side_by_side(rig, rig.prefill_slices(prefilled, 1), decoded, NEW_TOKENS - 1)
    rig.decode(prefilled, NEW_TOKENS - 1)

    assert outputs(decoded, NEW_TOKENS) == expected_decoded
    assert outputs(prefilled, NEW_TOKENS) == expected_prefilled


@two_cores
def test_lanes__two_models_decode_on_cores_of_their_own__tokens_as_in_serial(rig: CpuRig) -> None:
    models = ("demo-llama", "demo-qwen3")
    expected = {model: generate(rig, model, (20, 90, 7)) for model in models}
    sequences = {m: [rig.sequence(m, make_prompt(n), NEW_TOKENS) for n in (20, 90, 7)] for m in models}
    for of_model in sequences.values():
        rig.prefill(of_model)
    rig.executor.submit(Repartition(prefill_sms=0, decode_sms=2))

    for _ in range(NEW_TOKENS - 1):
        for index, model in enumerate(models):
            part = DecodePart(index, index, 1)
            rig.executor.submit(DecodeStep(model=model, sequences=tuple(sequences[model]), part=part))
        landed = 0
        while landed < len(models):
            done = rig.executor.wait(rig.executor.now() + DEADLINE_S)
            assert done, "no completion before the deadline"
            for completion in done:
                rig.apply(completion)
            landed += len(done)

    assert {model: outputs(sequences[model], NEW_TOKENS) for model in models} == expected
    threads = {thread.name for thread in threading.enumerate()}
    assert {f"cores-{core}" for core in available_cores()[:2]} <= threads


def test_submit__part_beyond_the_decode_share__is_refused(rig: CpuRig) -> None:
    sequence = rig.sequence("demo-llama", make_prompt(3), 2)
    rig.executor.submit(Repartition(prefill_sms=1, decode_sms=1))

    with pytest.raises(AssertionError, match="exceeds"):
        rig.executor.submit(DecodeStep(model="demo-llama", sequences=(sequence,), part=DecodePart(1, 1, 1)))


@two_cores
def test_repartition__between_launches__tokens_do_not_change(rig: CpuRig) -> None:
    expected = generate(rig, "demo-llama", (30, 5))
    sequences = [rig.sequence("demo-llama", make_prompt(length), NEW_TOKENS) for length in (30, 5)]

    rig.executor.submit(Repartition(prefill_sms=2, decode_sms=0))
    rig.prefill(sequences, layers_per_slice=2)
    for shares in [(0, 2), (1, 1), (0, 1)] * 3:
        rig.executor.submit(Repartition(prefill_sms=shares[0], decode_sms=shares[1]))
        rig.decode(sequences, 1)

    assert outputs(sequences, NEW_TOKENS) == expected


def test_repartition__beyond_the_device__is_refused(rig: CpuRig) -> None:
    with pytest.raises(AssertionError, match="exceeds"):
        rig.executor.submit(Repartition(prefill_sms=len(available_cores()), decode_sms=1))


def test_submit__lane_without_cores__is_refused(rig: CpuRig) -> None:
    sequence = rig.sequence("demo-llama", make_prompt(3), 2)
    rig.executor.submit(Repartition(prefill_sms=1, decode_sms=0))

    with pytest.raises(AssertionError, match="no cores"):
        rig.executor.submit(DecodeStep(model="demo-llama", sequences=(sequence,)))


def test_drop_prefill__between_slices__frees_the_hidden_states(rig: CpuRig) -> None:
    expected = generate(rig, "demo-qwen2", (50,))
    dropped = rig.sequence("demo-qwen2", make_prompt(200), NEW_TOKENS)
    slices = rig.prefill_slices([dropped], 2)
    rig.run(slices[0])

    rig.executor.submit(DropPrefill(batch_id=slices[0].batch_id))
    later = rig.sequence("demo-qwen2", make_prompt(50), NEW_TOKENS)
    rig.prefill([later], layers_per_slice=2)
    rig.decode([later], NEW_TOKENS - 1)

    assert outputs([later], NEW_TOKENS) == expected
    assert rig.executor._runners[PREFILL_LANE]._prefills == {}


def test_drop_prefill__unknown_batch__does_nothing(rig: CpuRig) -> None:
    rig.executor.submit(DropPrefill(batch_id=12345))

    assert generate(rig, "demo-llama", (4,))


def test_detach_model__prefill_half_done__forgets_it_and_keeps_the_others(
    rig: CpuRig, demo_checkpoints: Mapping[str, Path]
) -> None:
    expected = generate(rig, "demo-llama", (12,))
    rig.run(rig.prefill_slices([rig.sequence("demo-qwen3", make_prompt(30), 4)], 1)[0])

    rig.executor.detach_model("demo-qwen3")

    assert rig.executor._runners[PREFILL_LANE]._prefills == {}
    assert generate(rig, "demo-llama", (12,)) == expected
    rig.load("demo-qwen3", demo_checkpoints["demo-qwen3"])
    assert generate(rig, "demo-qwen3", (12,))


def test_submit__launch_that_fails__completes_with_error_and_the_lane_lives(
    rig: CpuRig, caplog: pytest.LogCaptureFixture
) -> None:
    sequence = rig.sequence("demo-llama", make_prompt(8), NEW_TOKENS)
    sequence.token_ids[3] = 10**6  # no such row of the embedding
    slices = rig.prefill_slices([sequence], 1000)

    rig.executor.submit(slices[0])
    done = rig.wait()

    assert isinstance(done, LaunchCompletion)
    assert done.tokens == ()
    assert done.error is not None
    assert "IndexError" in done.error
    assert "a launch of model demo-llama failed" in caplog.text
    assert generate(rig, "demo-llama", (8,))


def test_submit__non_finite_logits__fails_its_sequence_only(rig: CpuRig) -> None:
    """A weight that is NaN for one token: what has that token in its context has no finite logits."""
    alone = generate(rig, "demo-llama", (8, 5))
    healthy = [rig.sequence("demo-llama", make_prompt(length), NEW_TOKENS) for length in (8, 5)]
    poison = 639
    assert not any(poison in s.token_ids for s in healthy)
    rig.executor._attached["demo-llama"].decoder.weights.embedding[poison].fill_(float("nan"))
    broken = rig.sequence("demo-llama", (*make_prompt(6), poison), NEW_TOKENS)

    rig.executor.submit(rig.prefill_slices([healthy[0], broken, healthy[1]], 1000)[0])
    done = rig.wait()
    rig.apply(done)
    broken.token_ids.append(3)
    rig.executor.submit(DecodeStep(model="demo-llama", sequences=(broken, *healthy), steps=NEW_TOKENS - 1))
    decoded = rig.wait()
    rig.apply(decoded)

    assert set(done.sequence_errors) == {1}
    assert set(decoded.sequence_errors) == {0}
    assert "not finite" in decoded.sequence_errors[0]
    assert decoded.tokens[0] == ()
    assert outputs(healthy, NEW_TOKENS) == alone


def test_wait__nothing_in_flight__returns_at_deadline_or_on_wake(rig: CpuRig) -> None:
    assert rig.executor.wait(rig.executor.now() - 1.0) == ()
    assert rig.executor.wait(rig.executor.now() + 0.01) == ()

    rig.executor.wake()
    assert rig.executor.wait(None) == ()

    timer = threading.Timer(0.05, rig.executor.wake)
    timer.start()
    assert rig.executor.wait(None) == ()
    timer.join()


def test_rows__reused_by_another_model__old_bytes_do_not_reach_results(tmp_path: Path) -> None:
    """float32 bytes read as bfloat16 are NaN now and then; rows move between both models without being wiped."""
    shape = CheckpointShape(
        model_type="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
    )
    write_random_checkpoint(tmp_path, shape, seed=3)

    def run(poisoned: bool, blocks_from: str | None) -> list[list[int]]:
        rig = CpuRig(pool_mib=1, poisoned=poisoned)
        rig.load("narrow", tmp_path, dtype="bfloat16", max_rows=40)
        if blocks_from:
            rig.load(blocks_from, tmp_path, dtype="float32", max_rows=40)
            first = rig.sequence(blocks_from, make_prompt(500), 4)
            rig.prefill([first])
            used = rig._tables[blocks_from][first.rows].reshape(-1)
            rig._free_blocks = used[np.argsort(used)]  # what the first model wrote is all there is
        sequences = [rig.sequence("narrow", make_prompt(length), NEW_TOKENS) for length in (3, 33, 70)]
        rig.prefill(sequences)
        rig.decode(sequences, NEW_TOKENS - 1)
        rig.close()
        return outputs(sequences, NEW_TOKENS)

    clean = run(poisoned=False, blocks_from=None)

    assert run(poisoned=True, blocks_from=None) == clean
    assert run(poisoned=True, blocks_from="wide") == clean


def test_load_model__block_smaller_than_a_token__names_block_bytes(demo_checkpoints: Mapping[str, Path]) -> None:
    executor = TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=256, device=make_device())

    with pytest.raises(ModelLoadError, match="block_bytes to at least 512"):
        executor.load_model(ModelSource(model="demo-qwen3", source=str(demo_checkpoints["demo-qwen3"])))
    executor.close()


def test_load_adapter__base_is_not_there__says_so() -> None:
    executor = TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=4096, device=make_device())

    with pytest.raises(ModelLoadError, match="its base 'b' is not on this unit"):
        executor.load_adapter("x", "b", "nowhere", revision=None)
    executor.close()


@pytest.mark.parametrize(("requested", "expected"), [(None, 4096), (100, 100), (10**6, 4096)])
def test_load_model__max_model_len__is_the_smaller_of_both(
    demo_checkpoints: Mapping[str, Path], requested: int | None, expected: int
) -> None:
    executor = TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=4096, device=make_device())

    info = executor.load_model(
        ModelSource(model="m", source=str(demo_checkpoints["demo-llama"]), max_model_len=requested)
    )

    assert info.max_model_len == expected
    assert info.eos_token_ids == {0, 2}
    executor.close()


def test_measure_cpu__several_cores__threads_that_begin_later_work_alone() -> None:
    measure_cpu(2)

    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()

    assert found == [1]


def test_measure_cpu__one_core__gives_plausible_numbers() -> None:
    device = measure_cpu(1)

    assert device.num_sms == 1
    assert 1e8 < device.peak_flops_per_s < 1e14
    assert 1e7 < device.memory_bandwidth_bytes_per_s < 1e13
    assert 0 < device.launch_overhead_s < 1
    assert 0.01 < device.int8_compute_share < 100
    assert 0.01 < device.int4_compute_share < 100
