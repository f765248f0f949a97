"""What a capture asks of torch.cuda, in which order, and what it counts as its own memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pdmux_actor.executor.cuda.decode_graphs import CudaGraphCapture

GRAPH_BYTES = 7
MODEL_BYTES = 1000


class RecordingCuda:
    """Keeps what was called; a capture takes GRAPH_BYTES of the driver, while another thread allocates MODEL_BYTES."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.free_bytes, self.reserved_bytes = 1 << 20, 100
        self.memory = SimpleNamespace(memory_snapshot=self._snapshot)

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 1)

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.calls.append("on")
        yield
        self.calls.append("off")

    def CUDAGraph(self) -> object:
        def begin(*, pool: tuple[int, int], capture_error_mode: str) -> None:
            self.calls.append(f"begin {pool} {capture_error_mode}")

        def end() -> None:
            self.calls.append("end")
            self.free_bytes -= GRAPH_BYTES + MODEL_BYTES
            self.reserved_bytes += MODEL_BYTES

        return SimpleNamespace(capture_begin=begin, capture_end=end, replay=lambda: self.calls.append("replay"))

    def mem_get_info(self) -> tuple[int, int]:
        return self.free_bytes, 1 << 21

    def memory_reserved(self) -> int:
        return self.reserved_bytes

    def _snapshot(self, pool: tuple[int, int], *, include_traces: bool) -> list[dict[str, int]]:
        return [{"total_size": 30}, {"total_size": 12}] if pool == (0, 1) else []


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
