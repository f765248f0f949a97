"""Products are told the SMs of their partition where that makes them faster."""

from types import SimpleNamespace

import pytest
import torch

from pdmux_actor.executor.cuda.sm_target import products_gain_when_told, told_its_sms


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


@pytest.mark.parametrize(
    ("untold", "told", "gains", "library"),
    [(300e12, 600e12, True, "cublaslt"), (600e12, 610e12, False, "default"), (600e12, 500e12, False, "default")],
)
def test_products__told_or_not__stay_with_what_is_faster(untold: float, told: float, gains: bool, library: str) -> None:
    fake = Torch(untold, told)

    assert products_gain_when_told(fake.flops_per_s, fake, 16) is gains
    assert (fake.library, fake.spared) == (library, None)


def test_told_its_sms__launch_that_fails__is_taken_back() -> None:
    told: list[int | None] = []
    torch_c = SimpleNamespace(_set_sm_carveout_experimental=told.append)

    with pytest.raises(RuntimeError), told_its_sms(torch_c, 100):
        raise RuntimeError

    assert told == [100, None]


def test_torch__installed__has_what_is_asked_of_it() -> None:
    assert callable(torch._C._set_sm_carveout_experimental)
    library = torch.backends.cuda.preferred_blas_library()
    assert torch.backends.cuda.preferred_blas_library(library) == library
