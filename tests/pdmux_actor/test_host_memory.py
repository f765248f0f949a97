"""How much host memory there is, by the machine and by the container."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pdmux_actor.executor.host_memory import host_memory_bytes, spare_host_bytes

MIB = 1 << 20


@pytest.fixture
def container(tmp_path: Path) -> Callable[[str, int, int], Path]:
    def make(limit: str, used_bytes: int, cached_bytes: int) -> Path:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used_bytes}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {cached_bytes}\n")
        return tmp_path

    return make


def test_host_memory__container_with_a_limit__is_the_limit(container: Callable[[str, int, int], Path]) -> None:
    cgroup = container(str(100 * MIB), 60 * MIB, 10 * MIB)

    assert host_memory_bytes(cgroup) == 100 * MIB
    assert spare_host_bytes(cgroup) == 30 * MIB  # 50 are used for good, and a fifth stays free


def test_host_memory__no_limit_or_no_container__is_the_machines(
    container: Callable[[str, int, int], Path], tmp_path: Path
) -> None:
    total_bytes = psutil.virtual_memory().total

    assert host_memory_bytes(tmp_path / "missing") == total_bytes
    assert host_memory_bytes(container("max", 0, 0)) == total_bytes
    assert spare_host_bytes(container("max", 0, 0)) < total_bytes


def test_host_memory__little_left__nothing_is_spare(container: Callable[[str, int, int], Path]) -> None:
    assert spare_host_bytes(container(str(100 * MIB), 90 * MIB, 0)) < 0
