"""Tests that run SGLang itself, on a machine without a GPU: `make test-sglang`. Elsewhere they skip."""

import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint

collect_ignore = ["engine_scenario.py", "standins"]  # pytest looks for doctests in every file, and imports it

ROOT = Path(__file__).resolve().parents[2]
STANDINS = Path(__file__).parent / "standins"


def has_sglang():
    try:
        metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return False
    return True


def pytest_itemcollected(item):
    item.add_marker("sglang")
    if not has_sglang():
        item.add_marker(pytest.mark.skip(reason="needs SGLang: make test-sglang"))


@pytest.fixture(scope="session")
def sglang_environment():
    """For a process that runs SGLang without a GPU."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(STANDINS), str(ROOT)]),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",  # SGLang compiles seeded sampling: half a minute of C++ here
        "OMP_NUM_THREADS": "1",  # two processes' threads on two cores wait for each other most of the time
    }


@pytest.fixture(scope="session")
def deep_checkpoint(tmp_path_factory):
    """So many layers that a prefill takes a while, in slices."""
    folder = tmp_path_factory.mktemp("deep")
    write_random_checkpoint(folder, replace(DEMO_SHAPES["demo-llama"], num_layers=24), 3)
    return folder


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_random_checkpoint(folder, DEMO_SHAPES["demo-llama"], 1)
    return folder
