"""What a lane's launches compute in: nothing overlaps, nothing large comes from elsewhere, and plans reserve it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import make_cuda_rig
from model_shapes import LLAMA_3_8B

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.cuda import device_attention
from pdmux_actor.executor.cuda.lane_arenas import LaneArenas
from pdmux_actor.executor.cuda.partition_streams import PARTITION_STEP_SMS
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models import linear
from pdmux_actor.models.workspace import LaneArena, Workspace
from pdmux_actor.scheduling.events import Arrival, AttachModel
from pdmux_actor.scheduling.launch import (
    FIRST_DECODE_LANE,
    PREFILL_LANE,
    Chunk,
    DropPrefill,
    Lane,
    MixedStep,
    decode_shares,
)
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.estimation.memory import CUBLAS_STREAMS, workspace_bytes
from placement.launch_limits import LaunchLimits
from profiler.devices import DEVICES
from profiler.roofline import RooflineLatency

LIMITS = LaunchLimits(batch_tokens=24, sequences=4)
CPU = torch.device("cpu")


@given(st.lists(st.tuples(st.sampled_from("ptkd"), st.integers(1, 900), st.integers(0, 2)), max_size=30))
def test_arena__any_order_of_what_passes_and_what_stays__no_two_values_overlap(
    calls: list[tuple[str, int, int]],
) -> None:
    arena, workspace = LaneArena(CPU), Workspace()
    arena.resize(4096)
    scopes, passing, kept = [], [[]], {}
    with workspace.using(arena):
        for call, size, key in calls:
            if call == "p":
                scopes.append(workspace.passing())
                scopes[-1].__enter__()
                passing.append([])
            elif call == "t" and scopes:
                passing[-1].append(workspace.empty((size,), torch.uint8, CPU))
            elif call == "k":
                with workspace.keeping(key):
                    kept.setdefault(key, []).append(workspace.empty((size,), torch.uint8, CPU))
            elif call == "d":
                workspace.let_go(key)
                kept.pop(key, None)
            live = [value for values in (*passing, *kept.values()) for value in values]
            for number, value in enumerate(live):
                value.fill_(number)
            assert all(bool((value == number).all()) for number, value in enumerate(live))
        for scope in reversed(scopes):
            scope.__exit__(None, None, None)
            passing.pop()
    assert arena._passing_end == 0


class Largest(TorchDispatchMode):
    """Remembers the largest value that operations made outside of `arena`."""

    def __init__(self, arena: torch.Tensor) -> None:
        super().__init__()
        self._arena = arena.untyped_storage().data_ptr()
        self.num_bytes = 0
        self.of = ""

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves((args, kwargs)) if _has_storage(t)}
        for tensor in filter(_has_storage, pytree.tree_leaves(made)):
            place = tensor.untyped_storage().data_ptr()
            if place != self._arena and place not in given and tensor.nbytes > self.num_bytes:
                self.num_bytes, self.of = tensor.nbytes, str(func)
        return made


def _has_storage(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_launch__the_largest_of_the_limits__takes_nothing_large_but_of_its_arena(
    tiny_checkpoints: Mapping[str, Path], model_type: str, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Products and attention write where they are told to, as on a GPU.
    monkeypatch.setattr(linear, "_onednn_multiplies", lambda dtype: False)
    monkeypatch.setattr(device_attention, "varlen_attention", lambda *given: given[-1].fill_(0.5))
    rig = make_cuda_rig(launch_limits=LIMITS)
    spec = rig.load(model_type, tiny_checkpoints[model_type], dtype="float32").spec
    sequences = [rig.sequence(model_type, make_prompt(n), 2) for n in (13, 11)]
    launches = rig.prefill_slices(sequences, layers_per_slice=1)
    if is_fused:
        launches = [MixedStep(model=model_type, chunks=launches[0].chunks, sequences=())]
    arena = rig.executor.runner(FIRST_DECODE_LANE if is_fused else PREFILL_LANE).arena

    for launch in launches:
        with Largest(arena._memory) as largest:
            rig.executor.submit(launch)
        assert largest.num_bytes < LIMITS.batch_tokens * spec.hidden_size * 4, largest.of
        rig.apply(rig.wait())

    facts = rig.executor.arena_facts
    assert 0 < facts["arena_taken_bytes"] <= workspace_bytes(spec, 1, LIMITS)
    assert facts["arena_bytes"] == 2 * workspace_bytes(spec, 1, LIMITS)
    assert facts["beside_arena_bytes"] == 0
    assert arena._kept == {}
    assert all(len(tokens) == 1 for tokens in outputs(sequences, 1))


def needed_bytes(limits: LaunchLimits) -> int:
    """Of an 8B model, by the shapes of what its layers make."""
    spec, tile = LLAMA_3_8B, min(limits.batch_tokens, 4096)
    heads, width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, spec.hidden_size
    attention = limits.batch_tokens * (width + heads + spec.num_heads * spec.head_dim)  # normed, Q K V, attended
    mlp = tile * (width + 3 * spec.intermediate_size)
    logits = limits.sequences * spec.vocab_size * 3  # in the model's dtype and in float32
    return 2 * (limits.batch_tokens * width + max(attention, mlp, logits))


@pytest.mark.parametrize("limits", [LaunchLimits(), LaunchLimits(batch_tokens=8192, sequences=256)])
def test_workspace__of_an_8b_model__holds_the_largest_launch(limits: LaunchLimits) -> None:
    assert needed_bytes(limits) <= workspace_bytes(LLAMA_3_8B, 1, limits)


@pytest.mark.parametrize("name", ["H100", "H200", "B200"])
def test_library_bytes__streams_of_all_shares__each_has_a_workspace_of_cublas(name: str) -> None:
    device = replace(DEVICES[name], partition_granularity_sms=PARTITION_STEP_SMS)
    whole, default = len(Lane), 1

    assert len(Lane) * len(decode_shares(device)) + whole + default <= CUBLAS_STREAMS


def test_prefill__prompt_beyond_the_limits__takes_the_rest_from_the_allocator_with_the_same_tokens(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    produced = []
    for limits in (LIMITS, LaunchLimits(batch_tokens=400, sequences=4)):
        rig = make_cuda_rig(launch_limits=limits)
        rig.load("llama", tiny_checkpoints["llama"], dtype="float32", max_model_len=100)
        sequences = [rig.sequence("llama", make_prompt(90), 3)]
        rig.prefill(sequences, layers_per_slice=1)
        rig.decode(sequences, 2)
        produced.append(outputs(sequences, 3))
        assert (rig.executor.arena_facts["beside_arena_bytes"] > 0) is (limits is LIMITS)

    assert produced[0] == produced[1]


def test_engine__prompt_beyond_the_limits__is_cut_so_that_its_chunks_fit_with_the_same_tokens(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    said, beside_bytes = [], []
    for longest in (None, LIMITS.batch_tokens):
        executor = make_cuda_rig(launch_limits=LIMITS).executor
        source = ModelSource(model="llama", source=str(tiny_checkpoints["llama"]), dtype="float32", max_model_len=100)
        info = executor.load_model(source)
        settings = SchedulerSettings(max_batch_tokens=LIMITS.batch_tokens, longest_chunk_tokens=longest)
        told: list[TokenEvent] = []
        loop, inbox = build_engine(
            executor, policy="mux", settings=settings, latency=RooflineLatency(executor.device), outbox=told.extend
        )
        inbox.put(AttachModel(info, executor.total_blocks))
        sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        slo = Slo(ttft_s=10.0, tbt_s=1.0)
        request = GenerateRequest(
            request_id="r", model="llama", prompt_token_ids=make_prompt(90), sampling=sampling, slo=slo
        )
        inbox.put(Arrival(request))
        while not told or told[-1].finish is None:
            loop.turn()
            loop.act()
        said.append([token.token_id for event in told for token in event.tokens])
        beside_bytes.append(executor.arena_facts["beside_arena_bytes"])

    assert said[0] == said[1]
    assert beside_bytes[1] == 0 < beside_bytes[0]


@pytest.mark.parametrize("lengths", [(90,), (90, 81, 70), (12, 90, 13, 11)])
def test_prefill__prefixes_that_fill_the_pool__are_gathered_within_the_arena_with_the_same_tokens(
    tiny_checkpoints: Mapping[str, Path], lengths: Sequence[int]
) -> None:
    """One KV head of the longest sequence has room, and no more: contexts are longer than the launch by far."""
    produced = []
    for rig in (make_cuda_rig(launch_limits=LIMITS), CpuRig(block_bytes=512)):
        info = rig.load("llama", tiny_checkpoints["llama"], dtype="float32", max_model_len=92)
        sequences = [rig.sequence("llama", make_prompt(n), 1) for n in lengths]
        chunks = [
            (Chunk(sequence, start, min(20, length - 5 - start)),)
            for sequence, length in zip(sequences, lengths, strict=True)
            for start in range(0, length - 5, 20)
        ]
        chunks.append(tuple(Chunk(s, n - 5, 5) for s, n in zip(sequences, lengths, strict=True)))
        for together in chunks:
            rig.run(MixedStep(model="llama", chunks=together, sequences=()))
        produced.append(outputs(sequences, 1))
        if not rig.executor.memory_is_host:
            facts = rig.executor.arena_facts
            assert facts["beside_arena_bytes"] == 0
            assert facts["arena_bytes"] == 2 * workspace_bytes(info.spec, 1, LIMITS, 92)

    assert produced[0] == produced[1]


def test_prefill__another_batch_between_its_slices__keeps_its_states(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig, alone = make_cuda_rig(launch_limits=LIMITS), CpuRig(block_bytes=512)
    for each in (rig, alone):
        each.load("llama", tiny_checkpoints["llama"], dtype="float32")
    first, second, dropped = ([rig.sequence("llama", make_prompt(n), 1)] for n in (9, 7, 5))
    slices, of_dropped = rig.prefill_slices(first, 1), rig.prefill_slices(dropped, 1)
    rig.run(slices[0])
    rig.run(of_dropped[0])
    rig.prefill(second)
    rig.executor.submit(DropPrefill(batch_id=of_dropped[0].batch_id))
    for launch in slices[1:]:
        rig.run(launch)

    expected = [[alone.sequence("llama", make_prompt(n), 1)] for n in (9, 7)]
    for sequences in expected:
        alone.prefill(sequences)
    assert [outputs(s, 1) for s in (first, second)] == [outputs(s, 1) for s in expected]
    assert rig.executor.runner(PREFILL_LANE).arena._kept == {}


def test_prefill__fails_in_its_second_slice__its_states_are_let_go(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig(launch_limits=LIMITS)
    rig.load("llama", tiny_checkpoints["llama"])
    runner = rig.executor.runner(PREFILL_LANE)
    slices = rig.prefill_slices([rig.sequence("llama", make_prompt(9), 1)], 1)
    rig.run(slices[0])
    assert runner.arena.holds_any

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(runner, "_forward", fails)
    rig.executor.submit(slices[1])

    assert "out of memory" in str(rig.wait().error)
    assert not runner.arena.holds_any


def info_of(hidden_size: int) -> ModelInfo:
    class Described:
        spec = replace(LLAMA_3_8B, hidden_size=hidden_size)
        whole = None
        max_model_len = spec.max_position_embeddings

    return Described()  # type: ignore[return-value]  # what an arena's size follows from


def test_arenas__larger_model_comes_while_a_prefill_is_between_slices__grow_when_it_is_over() -> None:
    arenas, arena = LaneArenas(LIMITS, 1, lambda: 1 << 40), LaneArena(CPU)
    small, large = info_of(64), info_of(256)
    arenas.serve([small])
    arenas.resize(PREFILL_LANE, arena)
    was_bytes = arena.num_bytes
    arena.take((8,), torch.uint8, 1)

    arenas.serve([small, large])
    arenas.resize(PREFILL_LANE, arena)
    assert arena.num_bytes == was_bytes
    grown_bytes = workspace_bytes(large.spec, 1, LIMITS)
    assert arenas.reserved_bytes({PREFILL_LANE: arena}) == was_bytes - (grown_bytes - was_bytes)

    arena.let_go(1)
    arenas.resize(PREFILL_LANE, arena)
    assert arena.num_bytes == grown_bytes
    arenas.serve([])
    arenas.resize(PREFILL_LANE, arena)
    assert arena.num_bytes == 0


def test_arenas__no_room_for_the_decode_lane__goes_on_without_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    needed_bytes = workspace_bytes(LLAMA_3_8B, 1, LIMITS)
    free = [needed_bytes]
    arenas, prefill, decode = LaneArenas(LIMITS, 1, lambda: free[0]), LaneArena(CPU), LaneArena(CPU)
    arenas.serve([info_of(LLAMA_3_8B.hidden_size)])
    arenas.resize(PREFILL_LANE, prefill)
    free[0] -= prefill.num_bytes
    arenas.resize(FIRST_DECODE_LANE, decode)
    arenas.resize(FIRST_DECODE_LANE, decode)

    assert (prefill.num_bytes, decode.num_bytes) == (needed_bytes, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "lower kv_memory" in caplog.text


def test_arenas__model_that_loads_was_faster__goes_on_without_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens when a model is attached, where an error would end the engine."""
    arenas, arena = LaneArenas(LIMITS, 1, lambda: 1 << 40), LaneArena(CPU)
    arenas.serve([info_of(LLAMA_3_8B.hidden_size)])

    def resize(num_bytes: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(arena, "resize", resize)
    for _ in range(2):
        arenas.resize(PREFILL_LANE, arena)

    assert arena.num_bytes == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_mixed_step__prompt_in_chunks__tokens_of_the_cpu(tiny_checkpoints: Mapping[str, Path]) -> None:
    produced = []
    for rig in (make_cuda_rig(launch_limits=LIMITS), CpuRig(block_bytes=512)):
        rig.load("qwen3", tiny_checkpoints["qwen3"], dtype="float32")
        sequence = rig.sequence("qwen3", make_prompt(20), 1)
        for start in (0, 8, 16):
            chunk = Chunk(sequence, start, min(8, 20 - start))
            rig.run(MixedStep(model="qwen3", chunks=(chunk,), sequences=()))
        produced.append(outputs([sequence], 1))

    assert produced[0] == produced[1]
