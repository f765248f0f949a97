"""A model for which the device has too little memory fails alone: with one error, and what it took is given back."""

import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import NoStreams, make_cuda_rig, rest
from lora_adapters import AdapterShape, random_adapter

from pdmux_actor.engine import build_engine
from pdmux_actor.errors import ModelLoadError, ModelTooLarge
from pdmux_actor.executor.cuda import model_loading
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner
from pdmux_actor.executor.cuda.graph_capture import CudaGraphCapture
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash
from pdmux_actor.executor.cuda.warm_up import WarmUp
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.lora import AdapterSlots
from pdmux_actor.models.uploads import copy_in_place
from pdmux_actor.scheduling.events import AttachModel, RemoveModel
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits
from profiler.roofline import RooflineLatency

TOLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.19 GiB of which 5 MiB is free."
)
LIMITS = LaunchLimits(batch_tokens=64, sequences=4)
WEIGHTS_LACK = (
    r"model '{}' does not load: the device ran out of memory \(CUDA out of memory\. Tried to allocate 20\.00 MiB\): "
    r"its weights as float32 and workspace take \d+ bytes, \d+ are free; use a smaller model"
)


def run_out(*arguments: object, **options: object) -> None:
    raise torch.OutOfMemoryError(TOLD)


def load(rig: CpuRig, checkpoints: Mapping[str, Path], model: str) -> ModelInfo:
    return rig.executor.load_model(ModelSource(model=model, source=str(checkpoints[model]), dtype="float32"))


def serves(rig: CpuRig, model: str) -> bool:
    sequence = rig.sequence(model, make_prompt(5), 2)
    rig.prefill([sequence])
    rig.decode([sequence], 1)
    return len(outputs([sequence], 2)[0]) == 2


@pytest.fixture
def rig(tiny_checkpoints: Mapping[str, Path]) -> CpuRig:
    """Serves one model, whose steps are captured."""
    made = make_cuda_rig(captures_ahead=True, launch_limits=LIMITS)
    made.load("llama", tiny_checkpoints["llama"], "float32")
    return made


@pytest.fixture
def made_tensors(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    """Those that are made for weights from now on."""
    made: list[weakref.ref[torch.Tensor]] = []
    empty = torch.empty

    def noted(*sizes: object, **options: object) -> torch.Tensor:
        tensor = empty(*sizes, **options)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", noted)
    return made


def runs_out_after(num_uploads: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    left = [num_uploads]

    def upload(target: torch.Tensor, source: torch.Tensor) -> None:
        if not left[0]:
            run_out()
        left[0] -= 1
        copy_in_place(target, source)

    return upload


@pytest.mark.parametrize("where", ["embedding", "layers", "warming up"])
def test_load_model__no_memory_beside_one_that_serves__fails_alone_and_gives_back_what_it_took(
    rig: CpuRig,
    tiny_checkpoints: Mapping[str, Path],
    made_tensors: list[weakref.ref[torch.Tensor]],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes, held = rig.executor._lanes, []
    graphs = rig.executor.graph_facts["graphs"]
    with monkeypatch.context() as short:
        if where == "warming up":
            short.setattr(WarmUp, "model", run_out)
        else:
            short.setattr(rig.executor._loading._lanes, "upload", runs_out_after(0 if where == "embedding" else 7))
        short.setattr(lanes, "give_back", lambda: held.append(sum(tensor() is not None for tensor in made_tensors)))
        with pytest.raises(ModelTooLarge, match=WEIGHTS_LACK.format("qwen3")):
            load(rig, tiny_checkpoints, "qwen3")

    assert held == [0]
    assert made_tensors
    assert rig.executor.graph_facts["graphs"] == graphs > 0
    assert serves(rig, "llama")
    rig.load("qwen3", tiny_checkpoints["qwen3"], "float32")
    assert serves(rig, "qwen3")


def test_load_model__fails_for_another_reason__is_told_as_it_is(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*arguments: object) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(WarmUp, "model", break_off)

    with pytest.raises(RuntimeError, match="no kernel image"):
        load(rig, tiny_checkpoints, "qwen3")


def test_load_model__found_no_memory__captures_that_lacked_what_it_had_are_made(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig(captures_ahead=True, launch_limits=LIMITS, capture_fails=RuntimeError("out of memory"))
    rig.load("llama", tiny_checkpoints["llama"], "float32")
    assert rig.executor.graph_facts["graphs"] == 0
    rig.executor._graphs._capture.fails = None
    rest(rig)
    assert rig.executor.graph_facts["graphs"] == 0  # nothing has come free

    monkeypatch.setattr(WarmUp, "model", run_out)
    with pytest.raises(ModelTooLarge):
        load(rig, tiny_checkpoints, "qwen3")
    for _ in range(2):  # the first one ends since it was woken
        rig.executor.wait(rig.executor.now())
    rest(rig)

    assert rig.executor.graph_facts["graphs_without_memory"] == 0
    assert rig.executor.graph_facts["graphs"] > 0


def test_load_model__weights__room_is_made_for_them_before_any_is_read(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others are captured torch's allocator turns to nothing that it has in reserve."""
    lanes, order = rig.executor._lanes, []
    monkeypatch.setattr(lanes, "make_room", lambda num_bytes: order.append(num_bytes))
    monkeypatch.setattr(lanes, "upload", lambda target, source: order.append("read"))
    monkeypatch.setattr(WarmUp, "model", lambda *arguments: None)

    info = load(rig, tiny_checkpoints, "qwen3")

    assert order[0] >= info.spec.weight_bytes
    assert set(order[1:]) == {"read"}


@pytest.mark.parametrize(("free_bytes", "gives_back"), [(99, True), (100, False)])
def test_make_room__as_much_is_free__leaves_torch_its_reserve(
    free_bytes: int, gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, emptied = CudaLanes(torch.device("meta"), NoStreams(), num_sms=132), []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, 1000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(lanes.captures.locked()))

    lanes.make_room(100)

    assert emptied == ([True] if gives_back else [])
    assert not lanes.captures.locked()


def test_capture__while_it_lasts__nothing_is_given_back() -> None:
    """torch's allocator would do nothing, and not say so."""
    captures, seen = threading.Lock(), []
    graph = SimpleNamespace(capture_begin=lambda **options: None, capture_end=lambda: None, replay=list)
    cuda = SimpleNamespace(
        stream=lambda stream: threading.Lock(),
        graph_pool_handle=lambda: (0, 1),
        CUDAGraph=lambda: graph,
        mem_get_info=lambda: (1, 2),
        memory_reserved=lambda: 0,
    )
    stream = SimpleNamespace(synchronize=lambda: None)

    CudaGraphCapture(cuda, captures)(lambda: seen.append(captures.locked()), stream)

    assert seen == [False, True]  # before the capture, and in it
    assert not captures.locked()


def test_wake_model__no_memory_for_its_weights__sleeps_on(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.load("qwen3", tiny_checkpoints["qwen3"], "float32")
    rig.executor.sleep_model("qwen3", 1 << 30)
    rig.executor.detach_model("qwen3")

    with monkeypatch.context() as short:
        short.setattr(model_loading, "moved_from_host", run_out)
        with pytest.raises(ModelTooLarge, match=WEIGHTS_LACK.format("qwen3")):
            rig.executor.wake_model("qwen3")

    assert serves(rig, "llama")
    rig.wake("qwen3")
    assert serves(rig, "qwen3")


@pytest.mark.parametrize(("owner", "method"), [(AdapterSlots, "load"), (WarmUp, "adapter")])
def test_load_adapter__no_memory__fails_alone_and_a_later_one_works(
    rig: CpuRig,
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    owner: type,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = random_adapter(tiny_checkpoints["llama"], tmp_path / "a", AdapterShape(4, ("q_proj", "down_proj")))

    with monkeypatch.context() as short:
        short.setattr(owner, method, run_out)
        with pytest.raises(ModelTooLarge, match=r"'a' does not load: .* its matrices take \d+ bytes"):
            rig.executor.load_adapter("a", "llama", str(folder), revision=None)

    assert serves(rig, "llama")
    rig.executor.load_adapter("a", "llama", str(folder), revision=None)
    adapted = rig.sequence("a", make_prompt(5), 2, base="llama")
    rig.prefill([adapted])


def test_attach_model__no_memory_for_its_rows__leaves_as_it_came_and_others_are_served(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = rig.executor
    loop, inbox = build_engine(
        executor,
        policy="mux",
        settings=SchedulerSettings(max_batch_tokens=64, adapt_quotas=False),
        latency=RooflineLatency(executor.device),
        outbox=lambda events: None,
    )
    executor.wait = lambda deadline_s: ()
    info = load(rig, tiny_checkpoints, "qwen3")
    decoder = weakref.ref(executor._loaded["qwen3"].decoder)
    failures: list[ModelLoadError] = []
    attached: list[str] = []

    def attach() -> None:
        told = {"on_attached": lambda: attached.append(info.model), "on_failed": failures.append}
        inbox.put(AttachModel(info, 100, **told))
        loop.turn()

    held = []
    with monkeypatch.context() as short:
        short.setattr(torch, "zeros", run_out)
        short.setattr(executor._lanes, "give_back", lambda: held.append(decoder()))
        attach()

    (failure,) = failures
    assert isinstance(failure, ModelTooLarge)
    assert "'qwen3'" in str(failure)
    assert "its rows' blocks take" in failure.reason
    assert held == [None]
    inbox.put(RemoveModel("qwen3"))
    loop.turn()
    assert "qwen3" not in {**executor._loaded, **executor._attached}
    assert attached == []

    load(rig, tiny_checkpoints, "qwen3")
    attach()
    assert attached == ["qwen3"]
    del executor.wait
    assert serves(rig, "llama")


def test_attach_model__nobody_to_be_told__raises(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = load(rig, tiny_checkpoints, "qwen3")
    monkeypatch.setattr(CudaModel, "of", run_out)

    with pytest.raises(ModelTooLarge):
        rig.executor.attach_model(info, np.zeros((10, info.geometry.blocks_per_row), dtype=np.int64))

    assert "qwen3" not in {**rig.executor._loaded, **rig.executor._attached}


def test_capture__buffers_find_no_memory_of_the_driver__is_put_off(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's allocator is not the only one that says so."""
    rig = make_cuda_rig(captures_ahead=True, launch_limits=LIMITS)

    def refuse(*arguments: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    with monkeypatch.context() as short:
        short.setattr(CudaModel, "bucket", refuse)
        rig.load("llama", tiny_checkpoints["llama"], "float32")

    assert rig.executor.graph_facts["graphs_without_memory"] == 1
    assert serves(rig, "llama")


def test_fitting_flash__no_memory_to_try_it__is_tried_again() -> None:
    pool, tries = torch.zeros(4, 128), []

    def flash(attended: torch.Tensor, *arguments: object, **options: object) -> None:
        tries.append(attended)
        if len(tries) == 1:
            run_out()
        raise ValueError("pages of 256 tokens")

    fitting = FittingFlash(flash)
    with pytest.raises(torch.OutOfMemoryError):
        fitting.of(pool, 16)

    assert fitting.of(pool, 16) is None
    assert len(tries) == 2


def test_load_model__another_lane_begins_while_memory_is_counted__is_loaded(
    rig: CpuRig, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, begun = rig.executor, iter(range(5, 9))
    arenas = {id(runner): runner.arena for runner in executor._runners.values()}

    def arena(self: CudaRunner) -> object:
        executor._runners[next(begun)] = executor._runners[0]
        return arenas[id(self)]

    with monkeypatch.context() as busy:
        busy.setattr(CudaRunner, "arena", property(arena), raising=False)
        assert executor._free_bytes() > 0
