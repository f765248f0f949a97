"""What ends with a launch that fails: its requests, or the process where the device is lost."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import make_prompt
from cuda_rig import CpuLanes, NoStream, make_cuda_rig

from pdmux_actor.executor.cuda.cuda_runner import CudaRunner
from pdmux_actor.executor.cuda.warm_up import WarmUp
from pdmux_actor.model_info import ModelSource

REFUSED = torch.AcceleratorError("CUDA error: invalid configuration argument")
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_submit__the_device_refuses_a_launch__fails_it_alone(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    launches = [rig.prefill_slices([rig.sequence("llama", make_prompt(4), 1)], 1000)[0] for _ in range(2)]

    def refuse(*arguments: object) -> None:
        raise REFUSED

    with monkeypatch.context() as refused:
        refused.setattr(CudaRunner, "_prefill", refuse)
        rig.executor.submit(launches[0])
        assert "invalid configuration" in str(rig.wait().error)

    rig.run(launches[1])


@pytest.mark.parametrize("first", [LOST, RuntimeError("Triton Error [CUDA]: an illegal memory access")])
def test_submit__device_is_lost__ends_the_engine_whoever_noticed(
    tiny_checkpoints: Mapping[str, Path], first: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    (launch,) = rig.prefill_slices([rig.sequence("llama", make_prompt(4), 1)], 1000)

    def lose(error: Exception) -> None:
        raise error

    monkeypatch.setattr(CudaRunner, "_prefill", lambda *arguments: lose(first))
    monkeypatch.setattr(NoStream, "synchronize", lambda self: lose(LOST))

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        rig.executor.submit(launch)


@pytest.mark.parametrize("is_lost", [True, False])
def test_load_model__fails__ends_the_engine_only_if_the_device_is_lost(
    tiny_checkpoints: Mapping[str, Path], is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without a launch would not notice, and every later load would fail."""
    rig = make_cuda_rig()

    def fail(*arguments: object, **options: object) -> None:
        raise LOST

    monkeypatch.setattr(WarmUp, "model", fail)
    if is_lost:
        monkeypatch.setattr(CpuLanes, "settle", fail)

    with pytest.raises(torch.AcceleratorError):
        rig.executor.load_model(ModelSource(model="llama", source=str(tiny_checkpoints["llama"])))

    if is_lost:
        with pytest.raises(torch.AcceleratorError):
            rig.executor.wait(None)
    else:
        assert rig.executor.wait(0.0) == ()
