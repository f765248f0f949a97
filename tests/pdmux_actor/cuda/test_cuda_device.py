"""What is said when there is no GPU, or one that cannot be used."""

from dataclasses import dataclass
from itertools import count
from subprocess import CalledProcessError

import pytest

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.cuda.cuda_device import check_cuda_device, check_triton, settled_free_bytes


@dataclass
class Cuda:
    """Answers like torch.cuda."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    archs: tuple[str, ...] = ("sm_80", "sm_90", "sm_100", "compute_120")
    fails: str = ""

    def init(self) -> None:
        if self.fails:
            raise RuntimeError(self.fails)

    def device_count(self) -> int:
        return 1

    def get_device_name(self, index: int) -> str:
        return self.name

    def get_device_capability(self, index: int) -> tuple[int, int]:
        return self.capability

    def get_arch_list(self) -> list[str]:
        return list(self.archs)


DRIVER = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"


@pytest.mark.parametrize(
    "cuda",
    [Cuda(), Cuda("NVIDIA L40S", (8, 9)), Cuda("NVIDIA B200", (10, 0)), Cuda("later", (12, 1)), Cuda(archs=())],
)
def test_check_cuda_device__one_that_serves__is_taken(cuda: Cuda) -> None:
    check_cuda_device(cuda, "13.0", 0)


@pytest.mark.parametrize(
    ("cuda", "built_for", "index", "said"),
    [
        (Cuda(), None, 0, "built without CUDA; install torch's CUDA build"),
        (Cuda(fails=DRIVER), "13.0", 0, r"too old \(found version 12020\); install an NVIDIA driver for CUDA 13.0"),
        (Cuda(fails="No CUDA GPUs are available"), "13.0", 0, "No CUDA GPUs are available; check nvidia-smi"),
        (Cuda(), "13.0", 3, "GPU 3 is asked for, and 1 are visible; check CUDA_VISIBLE_DEVICES"),
        (Cuda("Tesla T4", (7, 5)), "13.0", 0, "Tesla T4 is older than sm_80; use an A100"),
        (Cuda("NVIDIA B200", (10, 0), ("sm_80", "sm_90")), "12.4", 0, "built for sm_80, sm_90, NVIDIA B200 is sm_100"),
    ],
)
def test_check_cuda_device__one_that_cannot_be_used__says_why_and_what_to_do(
    cuda: Cuda, built_for: str | None, index: int, said: str
) -> None:
    with pytest.raises(DeviceUnavailable, match=said):
        check_cuda_device(cuda, built_for, index)


class TritonDriver:
    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def active(self) -> object:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("Failed to find C compiler. Please specify via CC"),
            "launcher: Failed to find C compiler; install",
        ),
        (
            CalledProcessError(1, ["/usr/bin/gcc", "driver.c"]),
            "/usr/bin/gcc ended with exit code 1; install a C compiler",
        ),
        (AssertionError("libcuda.so cannot found!\nPossible files"), "libcuda.so cannot found!; install"),
    ],
)
def test_check_triton__it_cannot_compile__says_what_to_install(error: Exception, said: str) -> None:
    with pytest.raises(DeviceUnavailable, match=said):
        check_triton(TritonDriver(error))


def test_settled_free_bytes__engine_before_gives_its_memory_back__waits_until_it_has() -> None:
    free, pauses = [10, 40, 100, 100, 999], []

    found = settled_free_bytes(lambda: free.pop(0), pauses.append)

    assert found == 100
    assert len(pauses) == 3


def test_settled_free_bytes__others_come_and_go__does_not_wait_for_ever() -> None:
    free = count()

    assert settled_free_bytes(lambda: next(free), lambda seconds: None) == next(free) - 1
