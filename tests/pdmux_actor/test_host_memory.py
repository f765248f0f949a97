"""How much host memory there is, by the machine and by the container."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
import torch
from cpu_rig import CpuRig, make_device

from pdmux_actor.errors import HostMemoryShort, ModelTooLarge
from pdmux_actor.executor import cpu_device, torch_cpu
from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.host_memory import (
    free_host_bytes,
    give_back_freed_memory,
    host_memory_bytes,
    spare_host_bytes,
)
from pdmux_actor.executor.loading import refusals_of_memory
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.rank_share import RankShare

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


def test_host_memory__service_within_a_slice__is_the_least_that_either_admits(tmp_path: Path) -> None:
    """As systemd's MemoryMax: the limits of all cgroups that a process is in hold, not the root's alone."""
    for name, limit, used_bytes in (
        ("", "max", 900 * MIB),
        ("a.slice", 500 * MIB, 490 * MIB),
        ("b.service", 100 * MIB, 60 * MIB),
    ):
        cgroup = tmp_path / "a.slice" / name if name == "b.service" else tmp_path / name
        cgroup.mkdir(exist_ok=True)
        (cgroup / "memory.max").write_text(f"{limit}\n")
        (cgroup / "memory.current").write_text(f"{used_bytes}\n")
        (cgroup / "memory.stat").write_text("inactive_file 0\n")
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/\n0::/a.slice/b.service\n")

    assert host_memory_bytes(tmp_path, own) == 100 * MIB
    assert free_host_bytes(tmp_path, own) == 10 * MIB  # the slice has no more
    assert spare_host_bytes(tmp_path, own) == -10 * MIB


def test_load_model__more_than_the_container_has_left__is_too_large(
    demo_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has enough: the kernel would end the engine, and with it the models that it serves."""
    rig = CpuRig()
    try:
        rig.load("demo-llama", demo_checkpoints["demo-llama"])
        rig.executor.sleep_model("demo-llama", 1 << 30)
        rig.executor.detach_model("demo-llama")
        monkeypatch.setattr(torch_cpu, "free_host_bytes", lambda: MIB)

        with pytest.raises(ModelTooLarge, match=f"{MIB} are free; use a smaller model"):
            rig.load("demo-qwen2", demo_checkpoints["demo-qwen2"])
        with pytest.raises(ModelTooLarge, match=f"{MIB} are free"):
            rig.wake("demo-llama")
        assert rig.executor.resize_pool(1 << 40) == MIB // rig.executor.block_bytes
    finally:
        rig.close()


def test_rank__of_two__takes_half_of_what_is_left_as_the_other_one_does(
    demo_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds all of it free: both together took twice that, and the kernel ended them."""
    share = RankShare(rank=0, num_ranks=2)
    executor = TorchCpuExecutor(kv_pool_bytes=MIB, block_bytes=4096, device=make_device(), share=share)
    try:
        info = executor.load_model(ModelSource(model="m", source=str(demo_checkpoints["demo-llama"])))
        slept_bytes = executor.sleep_model("m", 1 << 30)
        left_bytes = max(slept_bytes, info.spec.weight_bytes) + 4096  # enough for one rank, not for two
        for name in ("free_host_bytes", "spare_host_bytes"):
            monkeypatch.setattr(torch_cpu, name, lambda: left_bytes)

        with pytest.raises(HostMemoryShort):
            executor.sleep_model("m", 1 << 30)
        executor.detach_model("m")
        with pytest.raises(ModelTooLarge, match=f"{left_bytes // 2} are free"):
            executor.wake_model("m")
        assert executor.resize_pool(1 << 40) == left_bytes // 2 // 4096
    finally:
        executor.close()


def test_measure_cpu__container_with_a_limit__has_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_device, "host_memory_bytes", lambda: 100 * MIB)

    assert measure_cpu(1).memory_bytes == 100 * MIB


def test_refusals_of_memory__what_torch_and_python_raise__are_too_large_and_nothing_else_is() -> None:
    told = r"'m' does not load: the system gives no more memory .* or use a smaller"
    for takes in (lambda: torch.empty(1 << 55, dtype=torch.uint8), lambda: bytearray(1 << 60)):
        with pytest.raises(ModelTooLarge, match=told), refusals_of_memory("m"):
            takes()
    with pytest.raises(RuntimeError, match="shape"), refusals_of_memory("m"):
        torch.zeros(2).view(3)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_give_back_freed_memory__pieces_between_others_that_stay__the_system_has_them_again() -> None:
    process = psutil.Process()
    pieces = [b"x" * 100_000 for _ in range(1000)]
    stay = pieces[::50]
    del pieces
    before_bytes = process.memory_info().rss

    give_back_freed_memory()

    assert process.memory_info().rss < before_bytes - 50 * MIB
    assert len(stay) == 20


def test_executor__model_comes_sleeps_or_wakes__freed_memory_is_given_back_before_free_memory_is_counted(
    demo_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch_cpu, "give_back_freed_memory", lambda: told.append("given back"))
    for name in ("free_host_bytes", "spare_host_bytes"):
        monkeypatch.setattr(torch_cpu, name, lambda: told.append("counted") or 1 << 40)
    rig = CpuRig()
    try:
        rig.load("demo-llama", demo_checkpoints["demo-llama"])
        rig.executor.sleep_model("demo-llama", 1 << 30)
        rig.executor.detach_model("demo-llama")
        rig.wake("demo-llama")
    finally:
        rig.close()

    assert told == ["given back", "counted"] * 3
