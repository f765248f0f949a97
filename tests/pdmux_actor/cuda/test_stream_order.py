"""Passes of a rank of GPUs that follows, on the streams of changing shares."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.ranks.following_cuda_runner import FollowingCudaRunner
from pdmux_actor.executor.ranks.rank_frames import HeadPass
from pdmux_actor.executor.ranks.stream_order import StreamOrder
from pdmux_actor.models.workspace import Workspace


@dataclass(frozen=True)
class NotedStream:
    name: str
    done: list[tuple[str, str]] = field(compare=False)

    def wait_event(self, event: SimpleNamespace) -> None:
        self.done.append((self.name, f"waits for {event.of}"))


class NotedCuda:
    """Notes what streams do, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.stream = "16 SMs"

    def current_stream(self) -> NotedStream:
        return NotedStream(self.stream, self.done)

    def Event(self) -> SimpleNamespace:
        event = SimpleNamespace(of=None)
        event.record = lambda stream: setattr(event, "of", f"{self.done[-1][1]} on {stream.name}")
        return event


def test_pass__on_another_stream_than_the_last__waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = NotedCuda()
    runner = FollowingCudaRunner({}, LaunchGraphs(None, 0), torch.device("cpu"), SimpleNamespace())
    monkeypatch.setattr(runner, "_order", StreamOrder(cuda))
    monkeypatch.setattr(runner, "_lane_models", {"m": SimpleNamespace(workspace=Workspace())})
    monkeypatch.setattr(runner, "_do", lambda told, model: cuda.done.append((cuda.stream, f"pass {told.num_tokens}")))

    for number, stream in enumerate(("16 SMs", "16 SMs", "32 SMs")):
        cuda.stream = stream
        runner.do(HeadPass(0, -1, 16, "m", number))

    waits = ("32 SMs", "waits for pass 1 on 16 SMs")
    assert cuda.done == [("16 SMs", "pass 0"), ("16 SMs", "pass 1"), waits, ("32 SMs", "pass 2")]
