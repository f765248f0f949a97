"""How the executor of a GPU is put together: the parts that need one are replaced."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cuda_rig import NoStreams

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor import open_cuda
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.scheduling.launch import Lane
from profiler.gpus.h200 import DEVICE as H200

GIB = 1 << 30
FREE_BYTES = 100 * GIB


@pytest.fixture(autouse=True)
def one_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB of it are free."""
    monkeypatch.setattr(open_cuda, "open_cuda_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(open_cuda, "open_partition_streams", lambda device, num_sms, divides_decode: NoStreams())
    monkeypatch.setattr(open_cuda, "cuda_device_spec", lambda device, *, step_sms: H200)
    monkeypatch.setattr(open_cuda, "lanes_that_gain", lambda device, streams, num_sms: frozenset({Lane.DECODE}))
    monkeypatch.setattr(CudaLanes, "free_memory_bytes", lambda self: FREE_BYTES)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_open__gpu_that_others_use_too__offers_what_is_free_but_for_graphs_and_libraries() -> None:
    executor = open_cuda_executor(kv_pool_bytes=1 << 20, block_bytes=4096)

    graph_bytes = int(0.06 * H200.memory_bytes)
    assert executor.device.memory_bytes == FREE_BYTES - graph_bytes - GIB
    assert executor.total_blocks == 256
    assert executor.chosen == {
        "partitioned_by": "none",
        "prefill_attention": "torch's own flash kernel (FlashAttention 2)",
        "products": "of decode told the SMs of their partition",
    }
    executor.close()


def test_open__kv_pool_beyond_what_is_free__is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match=r"101\.0 GiB and 100\.0 GiB"):
        open_cuda_executor(kv_pool_bytes=101 * GIB, block_bytes=16384)
