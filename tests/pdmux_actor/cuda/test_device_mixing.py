"""Launches on tensors of another device than the CPU: what goes unnoticed there fails here.

torch's meta tensors have shapes and a device, but no values: a tensor left on the CPU, a value read on the host or a
copy between the two is an error or is seen in the record of operators. Triton's kernels are not run.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="Triton has no build for this platform")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu.random_models import random_model

from pdmux_actor.executor.cuda import (
    cuda_runner,
    decode_kernels,
    host_reads,
    kv_kernels,
    sampling_kernels,
    split_kernels,
)
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.graph_key import PIECES, GraphKey
from pdmux_actor.executor.cuda.host_stage import Arrays, layout, views
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.models import triton_operators
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.models.workspace import Workspace
from pdmux_actor.scheduling.launch import Chunk, ComputeLaunch, DecodeStep, MixedStep, PrefillSlice
from pdmux_actor.scheduling.sequence import TokenSequence

GPU = torch.device("meta")  # in place of it
BLOCK_BYTES = 1024
KEY = GraphKey(model="tiny", bucket=16, sms=132, part=PIECES)
NUM_BLOCKS = 256
# Reading a value on the host, or asking the device for a size.
WAITING = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::equal", "aten::masked_select")


class Kernel:
    """In place of a Triton kernel: looks at its arguments only."""

    def __init__(self) -> None:
        self.launches = 0

    def __getitem__(self, grid: object) -> "Kernel":
        return self

    def __call__(self, *arguments: object, **options: object) -> None:
        self.launches += 1
        strangers = [a for a in arguments if isinstance(a, Tensor) and a.device != GPU]
        assert not strangers, f"a kernel is given tensors of {[t.device for t in strangers]}"


class Record(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.crossing: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        self.names.append(name)
        tensors = [t for t in pytree.tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        if {t.device for t in tensors} - {GPU}:
            self.crossing.append(name)
        return result


class FakeStage:
    """In place of pinned memory: what it sends is on the device without a copy."""

    device = torch.device(GPU)

    def send(
        self, arrays: Arrays, target: Tensor | None = None, read: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        size_bytes = layout(arrays)[1]
        return views(torch.empty(size_bytes, dtype=torch.uint8, device=GPU) if target is None else target, arrays, read)


class OtherDevice:
    def __init__(self, kernels: dict[str, Kernel], shape: str, dtype: str) -> None:
        self.kernels = kernels
        workspace = Workspace()
        operators = TritonOperators(workspace)
        loaded = random_model(shape, device=GPU, block_bytes=BLOCK_BYTES, dtype=dtype, operators=operators)
        info = loaded.info
        self.num_layers = info.spec.num_layers
        geometry = info.geometry
        rows = NUM_BLOCKS // geometry.blocks_per_row
        self.model = CudaModel(
            info=info,
            decoder=loaded.decoder,
            kv=DeviceKv(
                pool=torch.empty(NUM_BLOCKS, BLOCK_BYTES, dtype=torch.uint8, device=GPU).view(getattr(torch, dtype)),
                table=torch.empty(rows, geometry.blocks_per_row, dtype=torch.int32, device=GPU),
                kv_heads=info.spec.num_kv_heads,
                head_dim=info.spec.head_dim,
                tokens_per_row=geometry.tokens_per_row,
                on_device=np.ones(rows, dtype=np.bool_),
            ),
            row_table=np.zeros((rows, geometry.blocks_per_row), dtype=np.int64),
            eos_token_ids=torch.empty(2, dtype=torch.int64, device=GPU),
            max_rows=rows,
            workspace=workspace,
        )
        self.runner = CudaRunner({info.model: self.model}, LaunchGraphs(None, 0), GPU)
        self.runner._stage = FakeStage()
        self.runner.arena.resize(1 << 20)

    def sequence(self, num_tokens: int, **sampling: object) -> TokenSequence:
        request = GenerateRequest(
            request_id=f"r{num_tokens}",
            model=self.model.info.model,
            prompt_token_ids=(5,) * num_tokens,
            sampling=SamplingParams(max_tokens=8, **{"temperature": 0.0, **sampling}),
            slo=Slo(ttft_s=1.0, tbt_s=1.0),
        )
        sequence = TokenSequence.from_request(request, 0.0)
        sequence.rows = list(range(-(-(num_tokens + 8) // self.model.kv.tokens_per_row)))
        return sequence

    def run(self, launch: ComputeLaunch) -> Record:
        with Record() as record:
            self.runner.prepare(launch, 132, None)()
        return record


@pytest.fixture(params=["bfloat16", "float32"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherDevice]:
    kernels: dict[str, Kernel] = {}
    for module, names in (
        (split_kernels, ("_split_list_kernel",)),
        (decode_kernels, ("_split_kernel", "_join_kernel")),
        (kv_kernels, ("_store_kernel", "_gather_kernel")),
        (sampling_kernels, ("_draw_kernel", "_uniform_kernel")),
        (triton_operators, ("_rotate_kernel", "_silu_product_kernel", "_norm_kernel")),
    ):
        for name in names:
            kernels[name] = Kernel()
            monkeypatch.setattr(module, name, kernels[name])
    for module in (cuda_runner, host_reads):
        monkeypatch.setattr(module, "to_host", lambda tensor: tensor)
    with torch.inference_mode():
        yield OtherDevice(kernels, "tiny", request.param)


def check(record: Record) -> None:
    assert [name for name in record.names if name.split(".")[0] in WAITING] == []
    assert record.crossing == []
    assert len(record.names) > 20


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7, "seed": 3},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5},
        {"logprobs": 2},
        {"min_tokens": 3, "logprobs": 0, "temperature": 1.0},
    ],
)
def test_decode__any_sampling__stays_on_the_device(gpu: OtherDevice, sampling: dict[str, object]) -> None:
    sequences = (gpu.sequence(5), gpu.sequence(9, **sampling), gpu.sequence(16))

    check(gpu.run(DecodeStep(model="tiny", sequences=sequences, steps=3)))

    assert gpu.kernels["_join_kernel"].launches == 3 * gpu.num_layers
    for kernel in ("_uniform_kernel", "_draw_kernel"):
        assert gpu.kernels[kernel].launches == (3 if "temperature" in sampling else 0)


def test_prefill__slices_of_two_prompts__stay_on_the_device(gpu: OtherDevice) -> None:
    chunks = (Chunk(gpu.sequence(7), 0, 7), Chunk(gpu.sequence(12, temperature=0.5, logprobs=1), 0, 12))
    for first in range(gpu.num_layers):
        launch = PrefillSlice(batch_id=1, model="tiny", chunks=chunks, first_layer=first, last_layer=first + 1)
        check(gpu.run(launch))

    assert gpu.kernels["_store_kernel"].launches == gpu.num_layers
    assert gpu.kernels["_gather_kernel"].launches == 0


def test_mixed_step__chunk_with_a_prefix_beside_decodes__stays_on_the_device(gpu: OtherDevice) -> None:
    chunks = (Chunk(gpu.sequence(24), 8, 8),)

    check(gpu.run(MixedStep(model="tiny", chunks=chunks, sequences=(gpu.sequence(6), gpu.sequence(30)))))

    assert gpu.kernels["_gather_kernel"].launches == gpu.num_layers
    assert gpu.kernels["_split_kernel"].launches == gpu.num_layers


def test_mixed_step__in_pieces__stays_on_the_device(gpu: OtherDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = gpu.model.piece_bucket(16)
    monkeypatch.setattr(gpu.runner, "_captured_pieces", lambda *launch: KEY)
    monkeypatch.setattr(LaunchGraphs, "find", lambda self, key: bucket.steps())
    chunks = (Chunk(gpu.sequence(24), 8, 8),)

    check(gpu.run(MixedStep(model="tiny", chunks=chunks, sequences=(gpu.sequence(6), gpu.sequence(30)))))

    assert gpu.kernels["_gather_kernel"].launches == gpu.num_layers
    assert gpu.kernels["_norm_kernel"].launches == 2 * gpu.num_layers


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.nonzero])
def test_device__value_that_is_read__is_an_error(gpu: OtherDevice, read: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.ones(1, device=GPU))


def test_record__copy_from_the_host__is_seen(gpu: OtherDevice) -> None:
    on_host = torch.ones(3)

    with Record() as record:
        torch.ones(3, device=GPU).add_(on_host.to(GPU))

    assert record.crossing == ["aten::to.dtype_layout"]
