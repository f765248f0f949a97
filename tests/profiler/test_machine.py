from importlib.metadata import version
from pathlib import Path

import pytest

from profiler import machine


def program(folder: Path, name: str, said: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ("NVIDIA H200, 580.95.05\\nNVIDIA H200, 580.95.05\\n", {"gpu": "NVIDIA H200", "driver": "580.95.05"}),
        ("No devices were found\\n", {}),
        ("", {}),
    ],
)
def test_gpu_facts__what_nvidia_smi_says__of_the_first_gpu(
    said: str, facts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "nvidia-smi", said)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert machine.gpu_facts() == facts


def test_gpu_facts__no_nvidia_smi__nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert machine.gpu_facts() == {}


def test_source_version__checkout__is_its_commit_and_elsewhere_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "git", "0123456789ab-dirty\\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    in_checkout = (Path(machine.__file__).parents[1] / ".git").exists()

    assert machine.source_version() == ("0123456789ab-dirty" if in_checkout else version("muxfleet"))

    (tmp_path / "git").unlink()
    assert machine.source_version() == version("muxfleet")
