"""Products are told the SMs of their partition where that makes them faster."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from cuda_rig import NoStreams

from pdmux_actor.executor.cuda import lane_device
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.cuda.sm_target import gain_when_told, told_its_sms
from pdmux_actor.scheduling.launch import Lane


class Torch:
    """Answers like torch on a GPU whose products reach `untold`, and `told` from cublasLt on so many SMs."""

    def __init__(self, untold: float, told: float) -> None:
        self.rates = {False: untold, True: told}
        self.library, self.spared = "default", None
        self.backends = SimpleNamespace(cuda=SimpleNamespace(preferred_blas_library=self._prefer))
        self._C = SimpleNamespace(_set_sm_carveout_experimental=self._spare)

    def _prefer(self, library: str | None = None) -> str:
        self.library = library or self.library
        return self.library

    def _spare(self, sms: int | None) -> None:
        self.spared = sms

    def flops_per_s(self) -> float:
        return self.rates[self.library == "cublaslt" and self.spared == 16]


@pytest.mark.parametrize(("untold", "told", "gains"), [(300e12, 600e12, True), (600e12, 610e12, False)])
def test_products__told_or_not__gain_where_they_are_faster(untold: float, told: float, gains: bool) -> None:
    fake = Torch(untold, told)

    assert gain_when_told(fake.flops_per_s, fake, 16) is gains
    assert (fake.library, fake.spared) == ("default", None)


@pytest.mark.parametrize(
    ("spared", "by_products", "told"),
    [(100, True, ("cublaslt", 100)), (0, True, ("cublaslt", None)), (100, False, ("default", 100))],
)
def test_told_its_sms__launch_that_fails__is_taken_back(
    spared: int, by_products: bool, told: tuple[str, int | None]
) -> None:
    fake = Torch(1.0, 1.0)

    def launch() -> None:
        assert (fake.library, fake.spared) == told
        raise RuntimeError

    with pytest.raises(RuntimeError), told_its_sms(fake, spared, by_products=by_products):
        launch()

    assert (fake.library, fake.spared) == ("default", None)


@pytest.mark.parametrize(
    ("lane", "sms", "told"),
    [
        (Lane.DECODE, 48, ("cublaslt", 84)),
        (Lane.DECODE, 132, ("cublaslt", None)),  # nothing is spared: the library's choice alone
        (Lane.PREFILL, 84, ("default", None)),
    ],
)
def test_lanes__one_whose_products_gain__tells_them_and_the_other_does_not(
    monkeypatch: pytest.MonkeyPatch, lane: Lane, sms: int, told: tuple[str, int | None]
) -> None:
    fake = Torch(1.0, 1.0)
    fake.cuda = SimpleNamespace(stream=nullcontext)
    monkeypatch.setattr(lane_device, "torch", fake)
    lanes = CudaLanes(torch.device("cpu"), NoStreams(), num_sms=132, told_lanes={Lane.DECODE})

    with lanes.on(None, sms, lane):
        assert (fake.library, fake.spared) == told

    assert (fake.library, fake.spared) == ("default", None)


def test_torch__installed__has_what_is_asked_of_it() -> None:
    assert callable(torch._C._set_sm_carveout_experimental)
    library = torch.backends.cuda.preferred_blas_library()
    assert torch.backends.cuda.preferred_blas_library(library) == library
