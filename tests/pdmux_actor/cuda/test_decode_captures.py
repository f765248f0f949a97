"""When decode steps are captured, and which graphs make room for others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import NUM_SMS, NoStream, RerunCapture, make_cuda_rig

from pdmux_actor.executor.base import Executor
from pdmux_actor.executor.cuda.capture_plan import captured_buckets, captured_shares
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.graph_key import GraphKey, PlannedCapture, Step
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.scheduling.launch import DecodeStep, Lane
from placement.launch_limits import LaunchLimits

NEW_TOKENS = 3


def test_capture_plan__limits_of_a_unit__whole_device_first_and_large_batches_first() -> None:
    assert captured_buckets(20) == (24, 16, 12, 8, 4, 2, 1)
    assert captured_buckets(300)[:2] == (512, 256)
    assert captured_shares(132, [16, 64, 96, 112]) == (132, 64, 16, 96, 112)


def generate(rig: CpuRig, model: str, lengths: Sequence[int], **sampling: object) -> list[list[int]]:
    sequences = [rig.sequence(model, make_prompt(n), NEW_TOKENS, **sampling) for n in lengths]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


def rest(rig: CpuRig) -> None:
    """Until the deadline, which is long past."""
    assert rig.executor.wait(0.0) == ()
    while rig.executor.graph_facts["graphs_planned"]:
        rig.executor._capture_planned()


def test_decode__shape_without_a_graph__waits_for_no_capture_and_has_it_after_an_idle_moment(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig()
    executor: Executor = rig.executor
    rig.load("llama", tiny_checkpoints["llama"])
    captured = rig.executor._graphs._capture

    first = generate(rig, "llama", (4, 5, 6))
    assert captured.count == 0
    rest(rig)
    assert captured.count == 2  # the step up to the logits, and greedy sampling

    assert generate(rig, "llama", (4, 5, 6)) == first
    generate(rig, "llama", (4, 5, 6, 7))  # in the same bucket
    rest(rig)
    assert captured.count == 2
    assert rig.executor.graph_facts["graphs_in_traffic"] == 0
    assert executor.device.num_sms == NUM_SMS


def test_wait__nothing_in_flight__captures_what_is_planned_before_it_sleeps(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    generate(rig, "llama", (4,))

    rig.executor.wait(rig.executor.now() + 0.001)

    assert rig.executor.graph_facts["graphs"] >= 1


def test_wants__shape_that_comes_again_and_again__is_captured_though_the_lane_never_rests() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=1), budget_bytes=100)

    asked = [graphs.wants(graph_key("a", 1), NoStream(Lane.DECODE, 16)) for _ in range(8)]

    assert asked == [False] * 7 + [True]
    assert graphs.num_in_traffic == 1


@pytest.mark.parametrize("sampling", [{"logprobs": 2}, {"min_tokens": 2}, {"temperature": 0.9, "seed": 5}])
def test_decode__request_that_asks_for_more__uses_the_graph_of_all_up_to_the_logits(
    tiny_checkpoints: Mapping[str, Path], sampling: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    generate(rig, "llama", (5,))
    rest(rig)
    replayed: list[str] = []
    find = LaunchGraphs.find

    def noted(self: LaunchGraphs, key: GraphKey) -> Sequence[Step] | None:
        replayed.extend([key.part] if key in self._graphs else [])
        return find(self, key)

    monkeypatch.setattr(LaunchGraphs, "find", noted)
    generate(rig, "llama", (5,), **sampling)

    assert [part for part in replayed if part == "logits"] == ["logits"] * (NEW_TOKENS - 1)


def test_load__model_that_waits_until_it_is_warm__has_the_graphs_of_its_limits_on_every_partition(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig(captures_ahead=True, launch_limits=LaunchLimits(batch_tokens=64, sequences=3))
    rig.executor.device = replace(rig.executor.device, partition_granularity_sms=2)
    rig.load("llama", tiny_checkpoints["llama"])
    captured = rig.executor._graphs._capture
    ahead = dict.fromkeys((stream.lane, stream.sms) for stream in rig.executor._lanes.used)

    assert list(ahead) == [(Lane.DECODE, 4), (Lane.DECODE, 2)]
    assert captured.count == 2 * 2 * 3  # shares, parts of a step, buckets
    generate(rig, "llama", (4, 5, 6))
    facts = rig.executor.graph_facts
    assert captured.count == 12
    assert (facts["graphs"], facts["graphs_planned"], facts["graphs_that_failed"]) == (12, 0, 0)

    rig.load("qwen2", tiny_checkpoints["qwen2"])
    assert captured.count == 24
    rig.executor.detach_model("qwen2")
    assert rig.executor.graph_facts["graphs"] == 12


def test_decode__budget_of_nothing__goes_on_launch_by_launch_with_the_same_tokens(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    produced = []
    for budget_bytes in (1 << 30, 0):
        rig = make_cuda_rig(budget_bytes=budget_bytes)
        rig.load("qwen2", tiny_checkpoints["qwen2"])
        generate(rig, "qwen2", (3, 6))
        rest(rig)
        produced.append(generate(rig, "qwen2", (3, 6)))
        assert len(rig.executor._graphs) == (2 if budget_bytes else 0)

    assert produced[0] == produced[1]


def test_decode__capture_fails__runs_launch_by_launch_and_is_not_tried_again(
    tiny_checkpoints: Mapping[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """What a model's own code raises meanwhile is no reason to end the unit, either."""
    produced = []
    for fault in (None, RuntimeError("operation not permitted when stream is capturing"), ValueError("a branch")):
        rig = make_cuda_rig(capture_fails=fault)
        rig.load("qwen2", tiny_checkpoints["qwen2"])
        for _ in range(2):
            tokens = generate(rig, "qwen2", (3, 6))
            rest(rig)
        produced.append(tokens)
        assert rig.executor._graphs._capture.count == 2
        facts = rig.executor.graph_facts
        assert (facts["graphs"], facts["graphs_that_failed"]) == ((0, 2) if fault else (2, 0))

    assert produced[0] == produced[1] == produced[2]
    assert "cannot be captured" in caplog.text


def test_decode__capture_finds_no_memory__is_tried_again_once_a_model_has_left(
    tiny_checkpoints: Mapping[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_cuda_rig(capture_fails=RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB."))
    for model in ("llama", "qwen2"):
        rig.load(model, tiny_checkpoints[model])
    captured = rig.executor._graphs._capture
    first = generate(rig, "llama", (3, 6))
    rest(rig)
    facts = rig.executor.graph_facts
    assert (facts["graphs"], facts["graphs_without_memory"], facts["graphs_that_failed"]) == (0, 1, 0)
    assert captured.count == 1  # where one found none, what was planned with it would not, either
    rig.load("qwen3", tiny_checkpoints["qwen3"])
    assert rig.executor.graph_facts["graphs_planned"] == 2  # loading takes more than a loaded model
    rest(rig)
    captured.fails = None

    rig.executor.detach_model("qwen2")
    rest(rig)

    facts = rig.executor.graph_facts
    assert (facts["graphs"], facts["graphs_without_memory"]) == (2, 0)
    assert generate(rig, "llama", (3, 6)) == first
    assert caplog.text.count("finds no memory") == 2
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("buffers", ["bucket", "prefill_bucket"])
def test_wait__no_memory_for_the_buffers_of_a_capture__launches_go_on(
    tiny_checkpoints: Mapping[str, Path], buffers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig(captures_prompts=True)
    rig.load("llama", tiny_checkpoints["llama"])
    first = generate(rig, "llama", (3, 6))

    def fail(model: CudaModel, size: int) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    with monkeypatch.context() as short:
        short.setattr(CudaModel, buffers, fail)
        rest(rig)

    assert rig.executor.graph_facts["graphs_without_memory"] > 0
    assert generate(rig, "llama", (3, 6)) == first


def test_wants__shape_that_found_no_memory__waits_and_others_may_be_tried() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=1, fails=RuntimeError("out of memory")), budget_bytes=100)
    stream = NoStream(Lane.DECODE, 16)
    graphs.plan([PlannedCapture(graph_key("a", 2), stream)])

    graphs.capture(graph_key("a", 1), lambda: [list], stream)

    assert [graphs.wants(graph_key("a", 1), stream) for _ in range(10)] == [False] * 10
    assert graphs.num_planned == 0
    graphs.wants(graph_key("a", 2), stream)
    assert graphs.num_planned == 1
    graphs.forget_model("a")
    graphs.memory_came_free()
    assert graphs.num_planned == 0


def test_decode__captured_in_traffic__the_capture_is_no_part_of_its_time(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(4), 12)
    rig.prefill([sequence])
    over_s: list[float] = []

    class TimedCapture(RerunCapture):
        def __call__(self, step: Step, stream: NoStream) -> tuple[Step, int]:
            captured = super().__call__(step, stream)
            over_s.append(rig.executor.now())
            return captured

    rig.executor._graphs._capture = TimedCapture(graph_bytes=1)
    while not over_s:
        rig.executor.submit(DecodeStep(model="llama", sequences=(sequence,)))
        done = rig.wait()

    assert done.started_s >= over_s[-1]


def graph_key(model: str, bucket: int) -> GraphKey:
    return GraphKey(model=model, bucket=bucket, sms=16, part="greedy")


def test_capture__budget_spent__takes_the_place_of_what_was_used_longest_ago() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=60), budget_bytes=100)
    stream = NoStream(Lane.DECODE, 16)
    keys = [graph_key("a", bucket) for bucket in (1, 2, 4)]
    for key in keys[:2]:
        graphs.capture(key, lambda: [list], stream)
    assert (len(graphs), graphs.used_bytes) == (2, 120)
    graphs.find(keys[0])

    graphs.capture(keys[2], lambda: [list], stream)

    assert [graphs.find(key) for key in keys] == [[list], None, [list]]
    assert (graphs.num_evicted, graphs.used_bytes) == (1, 120)


def test_capture__fails__what_is_planned_like_it_waits_until_a_launch_asks_for_it() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=1, fails=ValueError("a branch")), budget_bytes=100)
    stream = NoStream(Lane.DECODE, 16)
    graphs.plan(PlannedCapture(key, stream) for key in (graph_key("a", 2), graph_key("b", 2)))

    graphs.capture(graph_key("a", 1), lambda: [list], stream)

    assert graphs.num_planned == 1
    graphs.wants(graph_key("a", 2), stream)
    assert graphs.next_planned().key == graph_key("a", 2)


def test_next_planned__budget_spent__only_what_launches_asked_for_takes_the_place_of_others() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=60), budget_bytes=50)
    stream = NoStream(Lane.DECODE, 16)
    graphs.plan(PlannedCapture(graph_key("a", bucket), stream) for bucket in (1, 2, 4))
    graphs.capture(graphs.next_planned().key, lambda: [list], stream)
    graphs.wants(graph_key("a", 4), stream)

    assert graphs.next_planned().key == graph_key("a", 4)
    graphs.capture(graph_key("a", 4), lambda: [list], stream)
    assert graphs.next_planned() is None
    assert graphs.num_planned == 0


def test_next_planned__intermediate_values_fill_the_budget__no_graph_goes_for_what_launches_asked_for() -> None:
    class SharingCapture(RerunCapture):
        def shared_bytes(self) -> int:
            return 30 * self.count

    graphs = LaunchGraphs(SharingCapture(graph_bytes=1), budget_bytes=50)
    stream, captured = NoStream(Lane.DECODE, 16), [graph_key("a", bucket) for bucket in (1, 2)]
    for key in captured:
        graphs.capture(key, lambda: [list], stream)
    graphs.wants(graph_key("a", 4), stream)

    while (planned := graphs.next_planned()) is not None:
        graphs.capture(planned.key, lambda: [list], planned.stream)

    assert [graphs.find(key) for key in captured] == [[list], [list]]
    assert (graphs.num_evicted, graphs.num_planned) == (0, 0)


def test_forget_model__its_graphs_and_plans_are_gone() -> None:
    graphs = LaunchGraphs(RerunCapture(graph_bytes=60), budget_bytes=1000)
    stream = NoStream(Lane.DECODE, 16)
    for model in ("a", "b"):
        graphs.capture(graph_key(model, 1), lambda: [list], stream)
        graphs.plan([PlannedCapture(graph_key(model, 2), stream)])

    graphs.forget_model("a")
    while graphs.destroy_one():
        pass

    assert (len(graphs), graphs.used_bytes, graphs.num_planned) == (1, 60, 1)
    assert graphs.find(graph_key("a", 1)) is None
