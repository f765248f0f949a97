"""Copies between the host and a GPU: from memory that is locked, on the one stream for them."""

import json
import mmap
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cuda_rig import NoStreams
from lora_adapters import AdapterShape, random_adapter

from pdmux_actor.executor import host_copy
from pdmux_actor.executor.cuda import lane_device
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.host_copy import HostRegion
from pdmux_actor.executor.loaded_adapters import LoadedAdapters
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.uploads import CudaStages, copy_in_place
from pdmux_actor.models.weights import load_weights

GPU = torch.device("meta")  # where nothing can be copied to but by an upload


class Stream:
    def __init__(self, made: list["Stream"]) -> None:
        made.append(self)
        self.device, self.waits = GPU, 0

    def wait_stream(self, other: object) -> None:
        pass

    def synchronize(self) -> None:
        self.waits += 1


def test_lanes__uploads_and_copies_of_many_models__are_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Stream] = []

    @contextmanager
    def current(stream: Stream):
        yield

    of_torch = {"Stream": lambda device: Stream(made), "default_stream": lambda device: None, "stream": current}
    for name, fake in of_torch.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    stages: list[CudaStages] = []

    def staged(of_stream: CudaStages):
        stages.append(of_stream)
        return copy_in_place

    monkeypatch.setattr(lane_device, "StagedUpload", staged)
    lanes = CudaLanes(GPU, NoStreams(), num_sms=132)

    for _ in range(33):
        with lanes.copying():
            pass
    for _ in range(2):
        lanes.upload(torch.empty(3, device=GPU), torch.ones(3))
    with pytest.raises(OSError, match="broke off"), lanes.copying():
        raise OSError("broke off")

    assert len(made) == 1
    assert len(stages) == 1
    assert stages[0]._stream is made[0]
    assert made[0].waits == 34  # also for copies that broke off


def test_load__weights_rotary_tables_and_adapters__come_by_the_upload(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """A copy from pageable memory holds up whoever launches."""
    folder = tiny_checkpoints["llama"]
    uploaded: list[tuple[torch.Size, str]] = []

    def upload(target: Tensor, source: Tensor) -> None:
        assert target.device == GPU
        uploaded.append((target.shape, source.device.type))

    config = DecoderConfig.from_config("m", json.loads((folder / "config.json").read_text()), None)
    weights = load_weights("m", folder, config, GPU, upload=upload)
    of_weights = len(uploaded)
    decoder = Decoder(config, weights, 64, upload=upload)
    tables = [shape for shape, _ in uploaded[of_weights:]]
    adapter = random_adapter(folder, tmp_path / "adapter", AdapterShape(4, ("q_proj", "down_proj")), 0)
    base = SimpleNamespace(decoder=decoder, info=SimpleNamespace(whole=None, spec=config.spec))
    LoadedAdapters(upload=upload).load("a", base, str(adapter), None)

    assert tables == [decoder._rotary.shape, decoder._prompt_rotary.shape]
    assert len(uploaded) == of_weights + 2 + 2 * 2 * config.spec.num_layers
    assert {device for _, device in uploaded} == {"cpu"}


def test_pin__system_locks_no_more_memory__the_next_launch_is_not_refused_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []  # CUDA's last error, until a launch asks for it

    def refuse(*_: object) -> int:
        kept.append("operation not supported")
        return 801

    def launch(*_: object, device: torch.device) -> None:
        if kept:
            raise torch.AcceleratorError(kept.pop())

    def check(result: int) -> None:
        raise RuntimeError(f"CUDA error {result}")

    of_cuda = {"cudart": lambda: SimpleNamespace(cudaHostRegister=refuse), "check_error": check}
    for name, fake in of_cuda.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "zeros", launch)

    with pytest.raises(RuntimeError, match="801"):
        CudaLanes(GPU, NoStreams(), num_sms=132).pin(torch.ones(3))

    assert kept == []


def test_region__kernel_without_huge_pages__has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(host_copy.mmap, "mmap", Pages)

    assert HostRegion(100).take(torch.ones(100, dtype=torch.uint8)).sum() == 100


def test_region__tensors_across_pieces__no_copy_leaves_a_locked_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "PIECE_BYTES", 256)
    locked: dict[int, int] = {}
    locks = SimpleNamespace(
        pin=lambda memory: locked.update({memory.data_ptr(): memory.nbytes}),
        unpin=lambda memory: locked.pop(memory.data_ptr()),
    )
    tensors = [torch.arange(n, dtype=dtype) for n in (1, 63, 300) for dtype in (torch.float32, torch.int8)]
    region = HostRegion(sum(-(-t.nbytes // 64) * 64 for t in tensors), locks)

    taken = [region.take(tensor) for tensor in tensors]

    assert all(map(torch.equal, taken, tensors))
    assert sum(locked.values()) == region.whole.nbytes
    for tensor in taken:
        for part, other in region.parts(tensor, tensor.clone()):
            assert torch.equal(part, other)
            begins = [first for first, size in locked.items() if first <= part.data_ptr() < first + size]
            assert len(begins) == 1
            assert part.data_ptr() + part.nbytes <= begins[0] + locked[begins[0]]
    region.let_go()
    assert not locked
