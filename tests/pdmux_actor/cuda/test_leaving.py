"""A model that leaves a GPU: the engine's loop turns while its graphs are destroyed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import RerunCapture, make_cuda_rig

from pdmux_actor.executor.cuda.graph_key import LAYERS, GraphKey, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from placement.launch_limits import LaunchLimits

DESTROY_S = 0.02
NUM_GRAPHS = 2 * 4  # parts of a step, buckets


class Graph:
    """Time passes when the last reference to it goes."""

    def __init__(self, step: Step, capture: "DestroyedCapture") -> None:
        self._step, self._capture = step, capture

    def __call__(self) -> None:
        self._step()

    def __del__(self) -> None:
        self._capture.now_s += DESTROY_S
        self._capture.destroyed += 1


class DestroyedCapture(RerunCapture):
    def __init__(self) -> None:
        super().__init__(60)
        self.now_s, self.destroyed, self.renewed = 0.0, 0, 0

    def __call__(self, step: Step, stream: object) -> tuple[Step, int]:
        return Graph(*super().__call__(step, stream)[:1], self), self.graph_bytes

    def idle_bytes(self) -> int:
        return 0

    def renew(self) -> None:
        self.renewed += 1


@pytest.fixture
def capture() -> DestroyedCapture:
    return DestroyedCapture()


@pytest.fixture
def rig(tiny_checkpoints: Mapping[str, Path], capture: DestroyedCapture) -> Iterator[CpuRig]:
    made = make_cuda_rig(captures_ahead=True, launch_limits=LaunchLimits(batch_tokens=64, sequences=8))
    made.executor._graphs._capture = capture
    made.executor.now = lambda: capture.now_s
    for model in ("llama", "qwen2"):
        made.load(model, tiny_checkpoints[model])
    assert capture.count == 2 * NUM_GRAPHS
    yield made
    made.executor.close()


def test_detach_model__captured__destroys_none_of_its_graphs_and_wait_one_between_two_looks(
    rig: CpuRig, capture: DestroyedCapture
) -> None:
    executor = rig.executor
    before_bytes = executor.graph_facts["graph_bytes"]

    executor.detach_model("qwen2")

    assert capture.destroyed == 0
    assert executor.graph_facts["graphs"] == NUM_GRAPHS
    assert executor.graph_facts["graph_bytes"] == before_bytes  # nobody else may have it yet
    assert executor.wait(capture.now_s + 3 * DESTROY_S) == ()
    assert capture.destroyed == 3
    executor.wake()
    executor.wait(None)
    assert capture.destroyed == 3
    executor.wait(capture.now_s)
    assert capture.destroyed == 4  # also of a loop whose deadlines are always past


def test_wait__launches_in_flight__are_looked_at_after_each_graph(rig: CpuRig, capture: DestroyedCapture) -> None:
    executor = rig.executor
    executor.detach_model("qwen2")
    take_over = executor._in_flight.take_over

    def once_three_are_destroyed() -> object:
        return take_over() if capture.destroyed >= 3 else []

    executor._in_flight.take_over = once_three_are_destroyed
    rig.prefill([rig.sequence("llama", make_prompt(5), 1)])

    assert capture.destroyed == 3


def test_destroy_one__last_of_them__its_memory_is_free_and_what_lacked_some_is_planned_again() -> None:
    capture = DestroyedCapture()
    graphs = LaunchGraphs(capture, budget_bytes=1000)
    layers = GraphKey(model="a", bucket=64, sms=32, part=LAYERS)
    steps: list[Step] = [lambda: None, lambda: None, lambda: None]
    for _ in range(2):  # a shape that is begun, and not whole
        graphs.capture(layers, lambda: steps, None)

    graphs.forget_model("a")
    assert (graphs.used_bytes, capture.renewed) == (120, 0)
    assert graphs.destroy_one()
    assert (graphs.used_bytes, capture.renewed) == (120, 0)
    assert graphs.destroy_one()

    assert (graphs.used_bytes, capture.renewed, capture.destroyed) == (0, 1, 2)
    assert not graphs.destroy_one()
