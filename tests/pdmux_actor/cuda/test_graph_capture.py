"""What a capture asks of torch.cuda, in which order, and what it counts as its own memory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pdmux_actor.executor.cuda import launch_graphs
from pdmux_actor.executor.cuda.graph_capture import CudaGraphCapture
from pdmux_actor.executor.cuda.graph_key import LAYERS, LOGITS, GraphKey, PlannedCapture, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs

GRAPH_BYTES = 7
MODEL_BYTES = 1000


class RecordingCuda:
    """Keeps what was called; a capture takes GRAPH_BYTES of the driver, while another thread allocates MODEL_BYTES.

    As torch's allocator it refuses a pool whose graphs have all gone, and one in which a capture did not end.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.free_bytes, self.reserved_bytes = 1 << 20, 100
        self.memory = SimpleNamespace(memory_snapshot=self._snapshot, _cuda_endAllocateToPool=self._end_recording)
        self.pools: dict[tuple[int, int], int] = {}  # how many graphs are in it
        self.recording: set[tuple[int, int]] = set()
        self.ends_broken_captures = True
        self.handles = 0
        self.loads_beside: list[int] = []  # bytes that another thread takes while this one asks what is free

    def graph_pool_handle(self) -> tuple[int, int]:
        self.handles += 1
        return (0, self.handles)

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.calls.append("on")
        yield
        self.calls.append("off")

    def CUDAGraph(self) -> "RecordingGraph":
        return RecordingGraph(self)

    def mem_get_info(self) -> tuple[int, int]:
        free_bytes, taken_bytes = self.free_bytes, self.loads_beside.pop() if self.loads_beside else 0
        self.free_bytes -= taken_bytes
        self.reserved_bytes += taken_bytes
        return free_bytes, 1 << 21

    def current_device(self) -> int:
        return 0

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def memory_reserved(self) -> int:
        return self.reserved_bytes

    def _end_recording(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def _snapshot(self, pool: tuple[int, int]) -> list[dict[str, int]]:
        sizes = [{"total_size": 30, "active_size": 0}, {"total_size": 12, "active_size": 5}]
        return sizes if pool in self.pools else []


class RecordingGraph:
    def __init__(self, cuda: RecordingCuda) -> None:
        self.cuda, self.pool = cuda, (0, 0)

    def capture_begin(self, *, pool: tuple[int, int], capture_error_mode: str) -> None:
        if self.cuda.pools.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        if pool in self.cuda.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.pool = pool
        self.cuda.pools[pool] = self.cuda.pools.get(pool, 0) + 1
        self.cuda.recording.add(pool)
        self.cuda.calls.append(f"begin {pool} {capture_error_mode}")

    def capture_end(self) -> None:
        self.cuda.calls.append("end")
        if self.cuda.ends_broken_captures:
            self.cuda.recording.discard(self.pool)
        self.cuda.free_bytes -= GRAPH_BYTES + MODEL_BYTES
        self.cuda.reserved_bytes += MODEL_BYTES

    def replay(self) -> None:
        self.cuda.calls.append("replay")

    def __del__(self) -> None:
        if self.pool in self.cuda.pools:
            self.cuda.pools[self.pool] -= 1


@pytest.fixture
def cuda() -> RecordingCuda:
    return RecordingCuda()


def stream_of(cuda: RecordingCuda) -> SimpleNamespace:
    return SimpleNamespace(synchronize=lambda: cuda.calls.append("synchronize"))


def test_capture__step__is_run_and_waited_for_before_and_disturbs_no_other_thread(cuda: RecordingCuda) -> None:
    capture = CudaGraphCapture(cuda)

    replay, own_bytes = capture(lambda: cuda.calls.append("step"), stream_of(cuda))
    replay()

    warm_up, captured = ["on", "step", "off", "synchronize"], ["on", "begin (0, 1) thread_local", "step", "end", "off"]
    assert cuda.calls == [*warm_up, *captured, "replay"]
    assert own_bytes == GRAPH_BYTES  # what another thread allocated meanwhile is not the graph's
    assert capture.shared_bytes() == 42
    assert capture.idle_bytes() == 30


@pytest.mark.parametrize("error", [RuntimeError("not permitted when stream is capturing"), KeyboardInterrupt()])
def test_capture__step_fails__leaves_the_stream_able_to_launch(cuda: RecordingCuda, error: BaseException) -> None:
    runs: list[int] = []

    def step() -> None:
        runs.append(1)
        if len(runs) == 2:  # the first one is not captured
            raise error

    with pytest.raises(type(error)):
        CudaGraphCapture(cuda)(step, stream_of(cuda))

    assert cuda.calls[-1] == "end"


def test_capture__beside_a_thread_that_loads_a_model__counts_none_of_its_memory(cuda: RecordingCuda) -> None:
    cuda.loads_beside = [MODEL_BYTES] * 5

    _, own_bytes = CudaGraphCapture(cuda)(lambda: None, stream_of(cuda))

    assert cuda.loads_beside == []
    assert own_bytes == GRAPH_BYTES


def captures(graphs: LaunchGraphs, cuda: RecordingCuda, model: str) -> bool:
    """Whether a step of `model` was captured."""
    key = GraphKey(model=model, bucket=1, sms=16, part="greedy")
    graphs.capture(key, lambda: [lambda: cuda.calls.append("step")], stream_of(cuda))
    return graphs.num_failed == 0


def test_graphs__last_model_left_and_another_came__are_captured_again(cuda: RecordingCuda) -> None:
    graphs = LaunchGraphs(CudaGraphCapture(cuda), budget_bytes=1000)
    assert captures(graphs, cuda, "first")
    assert captures(graphs, cuda, "second")
    graphs.forget_model("first")
    assert captures(graphs, cuda, "third")
    assert graphs.used_bytes == 3 * GRAPH_BYTES + 42
    assert graphs.destroy_one()
    assert graphs.used_bytes == 2 * GRAPH_BYTES + 42

    graphs.forget_model("second")
    graphs.forget_model("third")
    assert graphs.used_bytes == 2 * GRAPH_BYTES + 42
    assert [graphs.destroy_one() for _ in range(3)] == [True, True, False]
    assert graphs.used_bytes == 0

    assert captures(graphs, cuda, "fourth")
    assert len(graphs) == 1
    assert {pool for pool, count in cuda.pools.items() if count} == {(0, 2)}


@pytest.mark.parametrize("ends_broken_captures", [True, False])
def test_graphs__one_capture_broke_off__the_next_shape_is_captured(
    cuda: RecordingCuda, ends_broken_captures: bool
) -> None:
    graphs = LaunchGraphs(CudaGraphCapture(cuda), budget_bytes=1000)
    cuda.ends_broken_captures = ends_broken_captures
    calls = []

    def step_that_breaks() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")

    key = GraphKey(model="m", bucket=1, sms=16, part="greedy")
    graphs.capture(key, lambda: [step_that_breaks], stream_of(cuda))
    assert graphs.find(key) is None

    assert cuda.recording == set()  # else the allocator would give nothing back any more
    assert captures(graphs, cuda, "other model") is False  # the broken one is still counted
    assert (len(graphs), graphs.num_failed) == (1, 1)


def test_graphs__shape_of_several_steps__each_is_captured_by_itself_and_found_with_the_last(
    cuda: RecordingCuda,
) -> None:
    graphs, asked = LaunchGraphs(CudaGraphCapture(cuda), budget_bytes=1000), []
    key = GraphKey(model="m", bucket=16, sms=16, part=LAYERS)

    def steps() -> list[Step]:
        asked.append(key)
        return [lambda: cuda.calls.append("first"), lambda: cuda.calls.append("second")]

    graphs.capture(key, steps, stream_of(cuda))
    assert (graphs.find(key), graphs.num_planned, graphs.used_bytes) == (None, 1, GRAPH_BYTES)
    assert graphs.next_planned().key == key
    graphs.capture(key, steps, stream_of(cuda))

    begin = "begin (0, 1) thread_local"
    pieces = [["on", name, "off", "synchronize", "on", begin, name, "end", "off"] for name in ("first", "second")]
    assert cuda.calls == [*pieces[0], *pieces[1]]
    assert (len(graphs.find(key)), graphs.num_planned, graphs.used_bytes) == (2, 0, 2 * GRAPH_BYTES + 42)
    assert asked == [key]


@pytest.mark.parametrize("budget_bytes", [GRAPH_BYTES, 1000])
def test_graphs__all_that_was_begun_is_dropped__the_next_capture_has_a_pool_of_its_own(
    cuda: RecordingCuda, budget_bytes: int
) -> None:
    """torch's allocator takes none again whose graphs have all gone."""
    graphs = LaunchGraphs(CudaGraphCapture(cuda), budget_bytes)
    key = GraphKey(model="m", bucket=16, sms=16, part=LAYERS)
    graphs.capture(key, lambda: [list, list], stream_of(cuda))

    if budget_bytes == GRAPH_BYTES:
        assert graphs.next_planned() is None
    else:
        graphs.put_off(PlannedCapture(key, stream_of(cuda)), RuntimeError("out of memory"))

    assert graphs.used_bytes == 0
    assert captures(graphs, cuda, "other")


def test_graphs__later_step_of_the_only_shape_fails_before_its_capture__others_are_captured(
    cuda: RecordingCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the steps that went well the last graph of the pool goes."""
    monkeypatch.setattr(launch_graphs, "_LOG", logging.getLogger("dropped"))
    logging.getLogger("dropped").disabled = True  # a report would keep the error, and by its frames the graphs
    graphs, stream = LaunchGraphs(CudaGraphCapture(cuda), 1000), stream_of(cuda)
    layers, decode = (
        GraphKey(model="m", bucket=64, sms=32, part=LAYERS),
        GraphKey(model="m", bucket=8, sms=32, part=LOGITS),
    )

    def fails() -> None:
        raise RuntimeError("no kernel for this head size")

    for _ in range(2):
        graphs.capture(layers, lambda: (lambda: None, fails), stream)
    assert graphs.facts()["prompt_graphs_that_failed"] == 1
    graphs.capture(decode, lambda: (lambda: None,), stream)

    assert graphs.num_failed == 0
    assert graphs.find(decode) is not None


def test_graphs__last_whole_shape_goes_while_another_is_begun__its_memory_stays_counted(cuda: RecordingCuda) -> None:
    graphs, stream = LaunchGraphs(CudaGraphCapture(cuda), 1000), stream_of(cuda)
    layers, decode = (
        GraphKey(model="m", bucket=64, sms=32, part=LAYERS),
        GraphKey(model="n", bucket=8, sms=32, part=LOGITS),
    )
    graphs.capture(decode, lambda: (lambda: None,), stream)
    graphs.capture(layers, lambda: (lambda: None, lambda: None), stream)

    graphs.forget_model("n")
    while graphs.destroy_one():
        pass
    graphs.capture(layers, lambda: (), stream)

    assert graphs.find(layers) is not None
    assert graphs.used_bytes == 2 * GRAPH_BYTES + 42
    assert {call for call in cuda.calls if "begin" in call} == {"begin (0, 1) thread_local"}


@pytest.mark.parametrize("fails_again", [False, True])
def test_capture__no_memory__what_torch_holds_in_reserve_is_given_back_and_it_is_tried_once_more(
    cuda: RecordingCuda, fails_again: bool
) -> None:
    runs: list[int] = []

    def step() -> None:
        runs.append(1)
        if len(runs) == 2 or (fails_again and len(runs) > 2):  # the first one is not captured
            raise RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB.")

    capture, stream = CudaGraphCapture(cuda), stream_of(cuda)
    if fails_again:
        with pytest.raises(RuntimeError, match="out of memory"):
            capture(step, stream)
    else:
        capture(step, stream)

    assert cuda.calls.count("empty_cache") == 1
    assert cuda.calls.index("empty_cache") > cuda.calls.index("end")  # not within a capture
    assert len(runs) == 3
