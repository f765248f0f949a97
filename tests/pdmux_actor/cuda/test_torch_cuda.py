"""The CUDA executor's bookkeeping: graphs within their budget, failures, what is not there."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import make_prompt, outputs
from cuda_rig import BLOCK_BYTES, CpuLanes, NoStream, RerunCapture, make_cuda_rig, rest
from triton.runtime.interpreter import InterpretedFunction

from pdmux_actor.engine import build_engine
from pdmux_actor.errors import DeviceUnavailable, ModelLoadError, ModelTooLarge
from pdmux_actor.executor import host_copy, torch_cuda
from pdmux_actor.executor.cuda import device_attention
from pdmux_actor.executor.cuda.graph_key import GraphKey
from pdmux_actor.executor.cuda.large_kernels import LargeKernels
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.cuda.warm_up import prompt_sizes
from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import LoadReport
from pdmux_actor.scheduling.launch import PREFILL_LANE, DecodeStep, Lane
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits
from profiler.gpus.h200 import DEVICE as H200
from profiler.roofline import RooflineLatency

NEW_TOKENS = 3
PIECE_BYTES = 4096


def test_close__captured_graphs__are_dropped_before_their_contexts() -> None:
    rig = make_cuda_rig()
    executor = rig.executor
    left = []
    executor._graphs.capture(
        GraphKey(model="a", bucket=1, sms=16, part="greedy"), lambda: [list], NoStream(Lane.DECODE, 16)
    )
    executor._lanes.streams.close = lambda: left.append(len(executor._graphs))

    executor.close()

    assert left == [0]


def test_close__pinned_buffers__are_gone_before_the_streams_that_read_them(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig()
    executor = rig.executor
    rig.load("llama", tiny_checkpoints["llama"])
    rig.prefill([rig.sequence("llama", make_prompt(5), NEW_TOKENS)])
    stages = [weakref.ref(runner._stage) for runner in executor._runners.values()]
    left: list[object] = []
    executor._lanes.streams.close = lambda: left.extend(stage() for stage in stages)

    executor.close()

    assert left == [None, None]


def test_submit__launch_that_fails_halfway__is_waited_for_before_its_inputs_are_overwritten(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    waited = []
    monkeypatch.setattr(NoStream, "synchronize", lambda self: waited.append(self.lane))
    sequence = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    sequence.token_ids[3] = 10**6

    rig.executor.submit(rig.prefill_slices([sequence], 1000)[0])

    assert waited == [Lane.PREFILL]


def test_attach_model__tables_made_on_the_default_stream__are_waited_for(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    settled = []
    monkeypatch.setattr(rig.executor._lanes, "settle", lambda: settled.append(list(rig.executor._attached)))

    rig.load("llama", tiny_checkpoints["llama"])

    assert settled == [["llama"], ["llama"]]  # before and after its lanes have memory


def test_load_report__plain_streams__says_why() -> None:
    rig = make_cuda_rig()
    rig.executor.unpartitioned_reason = "cuGreenCtxCreate: CUDA_ERROR_NOT_SUPPORTED"
    reports: list[LoadReport] = []
    loop, _ = build_engine(
        rig.executor,
        policy="mux",
        settings=SchedulerSettings(),
        latency=RooflineLatency(rig.executor.device),
        outbox=lambda events: None,
        on_load_report=reports.append,
    )

    loop.act()

    assert [report.unpartitioned_reason for report in reports] == ["cuGreenCtxCreate: CUDA_ERROR_NOT_SUPPORTED"]


def test_decode__logits_not_finite__only_that_sequence_fails(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    healthy, broken = (rig.sequence("llama", make_prompt(n), NEW_TOKENS) for n in (6, 7))
    rig.prefill([healthy, broken])
    table = rig._tables["llama"]
    rig.executor._pool.view(torch.float32)[torch.from_numpy(table[broken.rows[0]])] = float("nan")

    rig.executor.submit(DecodeStep(model="llama", sequences=(healthy, broken)))
    done = rig.wait()

    assert len(done.tokens[0]) == 1
    assert done.tokens[1] == ()
    assert "not finite" in done.sequence_errors[1]


def test_submit__launch_that_fails__completes_with_error_and_the_lane_lives(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    sequence.token_ids[3] = 10**6  # no such row of the embedding

    rig.executor.submit(rig.prefill_slices([sequence], 1000)[0])
    assert rig.wait().error is not None

    other = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    rig.prefill([other])
    assert len(outputs([other], 1)[0]) == 1


def test_detach_model__prefill_half_done__forgets_its_states_and_graphs(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    rig.prefill([sequence])
    rig.decode([sequence], 1)
    rig.run(rig.prefill_slices([rig.sequence("llama", make_prompt(5), NEW_TOKENS)], 1)[0])

    rig.executor.detach_model("llama")

    assert len(rig.executor._graphs) == 0
    assert rig.executor._runners[PREFILL_LANE]._prefills == {}


def test_sleep_model__woken__computes_the_same_and_its_host_memory_is_let_go(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded pieces: others launch meanwhile."""
    monkeypatch.setattr(host_copy, "PIECE_BYTES", PIECE_BYTES)
    rig = make_cuda_rig()
    lanes = rig.executor._lanes
    rig.load("llama", tiny_checkpoints["llama"])
    before = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    rig.prefill([before])
    rig.decode([before], NEW_TOKENS - 1)

    weight_bytes = rig.executor.sleep_model("llama", 1 << 30)
    rig.executor.detach_model("llama")
    assert len(lanes.pinned) == -(-weight_bytes // PIECE_BYTES) > 2
    assert lanes.most_pinned_bytes == PIECE_BYTES
    assert sum(num_bytes for _, num_bytes in lanes.pinned) == weight_bytes
    copies = lanes.num_copies
    rig.wake("llama")

    assert weight_bytes >= rig.infos["llama"].spec.weight_bytes
    assert lanes.num_copies > copies
    while rig.executor._loading.unlock_one():
        pass
    assert lanes.pinned == []
    after = rig.sequence("llama", make_prompt(8), NEW_TOKENS)
    rig.prefill([after])
    rig.decode([after], NEW_TOKENS - 1)
    assert outputs([after], NEW_TOKENS) == outputs([before], NEW_TOKENS)


def test_sleep_model__copy_fails__pages_are_unlocked(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])

    @contextmanager
    def copying() -> Iterator[None]:
        yield
        assert rig.executor._lanes.pinned
        raise RuntimeError("the copy failed")

    monkeypatch.setattr(rig.executor._lanes, "copying", copying)
    with pytest.raises(RuntimeError, match="the copy failed"):
        rig.executor.sleep_model("llama", 1 << 30)

    assert rig.executor._lanes.pinned == []


def test_wake_model__no_room_on_the_device__sleeps_on(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig(budget_bytes=0)
    rig.load("llama", tiny_checkpoints["llama"])
    rig.executor.sleep_model("llama", 1 << 30)
    rig.executor.detach_model("llama")

    with monkeypatch.context() as patched:
        patched.setattr(rig.executor._lanes, "free_memory_bytes", lambda: 1000)
        with pytest.raises(ModelTooLarge, match="1000 are free"):
            rig.executor.wake_model("llama")

    rig.wake("llama")


def test_load_model__larger_than_the_device__is_refused(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig(budget_bytes=1 << 20)
    monkeypatch.setattr(rig.executor._lanes, "free_memory_bytes", lambda: (1 << 20) + 1000)

    with pytest.raises(ModelLoadError, match=r"weights as float32 and workspace take .* 1000 are free"):
        rig.load("llama", tiny_checkpoints["llama"])


def test_load_model__room_for_weights_but_not_for_the_largest_launch__is_refused(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = make_cuda_rig(), make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=1 << 20, sequences=64))
    for rig in (small, large):
        monkeypatch.setattr(rig.executor._lanes, "free_memory_bytes", lambda: (1 << 30) + (64 << 20))

    small.load("llama", tiny_checkpoints["llama"])
    with pytest.raises(ModelTooLarge, match=f"workspace take .* {64 << 20} are free"):
        large.load("llama", tiny_checkpoints["llama"])


def test_load_model__beside_one_whose_steps_are_captured__memory_of_graphs_is_not_counted_twice(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LaunchLimits(batch_tokens=20, sequences=1)
    rig = make_cuda_rig(captures_ahead=True, launch_limits=limits, budget_bytes=1 << 20, graph_bytes=50_000)
    graphs, lanes = rig.executor._graphs, rig.executor._lanes
    monkeypatch.setattr(lanes, "free_memory_bytes", lambda: (1 << 20) + (16 << 20) - graphs.used_bytes)
    rig.load("llama", tiny_checkpoints["llama"])
    assert graphs.used_bytes > 0

    monkeypatch.setattr(lanes, "free_memory_bytes", lambda: (1 << 20) + 1000 - graphs.used_bytes)
    arenas = rig.executor.arena_facts["arena_bytes"]
    with pytest.raises(ModelLoadError, match=f" {arenas // 2 + 1000} are free"):
        rig.load("qwen3", tiny_checkpoints["qwen3"])


def test_load_model__beside_graphs_whose_values_lie_in_torchs_reserve__does_not_count_that_as_free(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between replays torch's allocator counts as in reserve what it gives to captures only."""
    limits, shared_bytes = LaunchLimits(batch_tokens=20, sequences=1), 300_000
    rig = make_cuda_rig(captures_ahead=True, launch_limits=limits, budget_bytes=1 << 20, graph_bytes=1000)
    graphs, lanes = rig.executor._graphs, rig.executor._lanes
    for of_capture in ("shared_bytes", "idle_bytes"):
        monkeypatch.setattr(RerunCapture, of_capture, lambda self: shared_bytes)

    def free_bytes() -> int:
        return (1 << 20) + (16 << 20) - (graphs.used_bytes - shared_bytes * bool(graphs.used_bytes))

    monkeypatch.setattr(lanes, "free_memory_bytes", free_bytes)
    rig.load("llama", tiny_checkpoints["llama"])
    assert graphs.used_bytes > shared_bytes

    held = rig.executor._arenas.reserved_bytes({n: r.arena for n, r in rig.executor._runners.items()})
    assert rig.executor._free_bytes() == (16 << 20) + held
    rig.executor.detach_model("llama")
    rest(rig)
    assert rig.executor._free_bytes() == 16 << 20


def test_resize_pool__no_model_there__has_the_new_size_and_no_more_than_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = TorchCudaExecutor(
        kv_pool_bytes=0, block_bytes=BLOCK_BYTES, lanes=CpuLanes(), device=H200, graphs=LaunchGraphs(None, 0)
    )
    assert executor.total_blocks == 0

    assert executor.resize_pool(50) == executor.total_blocks == len(executor._pool) == 50

    monkeypatch.setattr(executor._lanes, "free_memory_bytes", lambda: 20 * BLOCK_BYTES)
    assert executor.resize_pool(50) == len(executor._pool) == 20


def test_executor__kv_pool_larger_than_what_is_free__names_the_setting() -> None:
    lanes = CpuLanes()

    with pytest.raises(DeviceUnavailable, match=r"pool takes 16\.5 GiB and 16\.0 GiB .* are free; lower .* kv_memory"):
        TorchCudaExecutor(
            kv_pool_bytes=33 << 29,
            block_bytes=BLOCK_BYTES,
            lanes=lanes,
            device=H200,
            graphs=LaunchGraphs(None, 0),
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_open_cuda_executor__no_gpu__says_what_is_missing() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no CUDA device to serve on: .*; (install|check)"):
        open_cuda_executor(kv_pool_bytes=1 << 20, block_bytes=4096)


def test_partition_rates__shares__are_measured_on_both_lanes_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make_cuda_rig().executor
    monkeypatch.setattr(torch_cuda, "LargeKernels", partial(LargeKernels, matrix_size=32, copy_bytes=1 << 12))

    rates = executor.partition_rates((2, 4))

    assert [(stream.lane, stream.sms) for stream in executor._lanes.used] == [
        (Lane.PREFILL, 2),
        (Lane.DECODE, 2),
        (Lane.PREFILL, 4),
        (Lane.DECODE, 4),
    ]
    assert [rate.sms for rate in rates] == [2, 4]
    assert all(rate.flops_per_s > 0 and rate.bandwidth_bytes_per_s > 0 for rate in rates)


def test_load_model__before_its_first_launch__every_kernel_has_run_once(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LaunchLimits(batch_tokens=20, sequences=1)
    rig = make_cuda_rig(captures_ahead=True, launch_limits=limits)
    attended: list[tuple[int, ...]] = []

    def attention(query: torch.Tensor, key: torch.Tensor, *rest: object) -> None:
        attended.append((*query.shape, *key.shape[1:]))

    monkeypatch.setattr(device_attention, "varlen_attention", attention)
    ran = ran_kernels(monkeypatch)
    rig.load("qwen3", tiny_checkpoints["qwen3"])

    assert attended == [(20, 6, 16, 2, 16), (2, 6, 16, 2, 16)]
    assert ran == {
        "_split_list_kernel",
        "_split_kernel",
        "_join_kernel",
        "_store_kernel",
        "_gather_kernel",
        "_rotate_kernel",
        "_silu_product_kernel",
        "_norm_kernel",
        "_ban_kernel",
        "_draw_kernel",
        "_uniform_kernel",
    }


def test_prompt_sizes__limits_of_a_unit__from_the_largest_launch_to_the_shortest_prompt() -> None:
    assert prompt_sizes(8192) == (8192, 2048, 512, 128, 2)
    assert prompt_sizes(0) == (2,)


def ran_kernels(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that the interpreter runs from now on."""
    names: set[str] = set()
    launch = InterpretedFunction.__getitem__

    def noted(self: InterpretedFunction, grid: object) -> object:
        names.add(self.fn.__name__)
        return launch(self, grid)

    monkeypatch.setattr(InterpretedFunction, "__getitem__", noted)
    return names


def test_resize_pool__smaller__what_is_left_of_the_larger_one_goes_back_before_memory_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch cuts a smaller pool out of the larger one's stretch, and counts the rest of it as nobody's."""
    rig = make_cuda_rig()
    lanes, had = rig.executor._lanes, rig.executor.total_blocks
    order: list[tuple[str, int]] = []
    monkeypatch.setattr(lanes, "give_back", lambda: order.append(("given back", len(rig.executor._pool))))
    free_bytes = lanes.free_memory_bytes
    monkeypatch.setattr(lanes, "free_memory_bytes", lambda: order.append(("counted", 0)) or free_bytes())

    assert rig.executor.resize_pool(had // 2) == had // 2

    assert order[:2] == [("given back", 0), ("counted", 0)]
    assert len(rig.executor._pool) == had // 2
