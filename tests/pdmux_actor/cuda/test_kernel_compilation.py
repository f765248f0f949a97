"""Triton's compiler needs no GPU: every kernel is compiled for GPUs that are not here. The interpreter takes code that
the compiler refuses.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton has no build for this platform")

SHARED_MEMORY_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # that a block can have


@pytest.mark.parametrize("capability", list(SHARED_MEMORY_BYTES))
def test_kernels__for_an_absent_gpu__compile_without_spills(capability: int, tmp_path: Path) -> None:
    program = Path(__file__).with_name("compile_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, program, str(capability)], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert {
        "_split_kernel",
        "_join_kernel",
        "_store_kernel",
        "_gather_kernel",
        "_rotate_kernel",
        "_norm_kernel",
        "_ban_kernel",
        "_draw_kernel",
        "_uniform_kernel",
        "_split_list_kernel",
    } <= set(report)
    # Five models: nothing but their shapes makes a variant, no layer, no batch and no number of splits.
    assert {name: len(variants) for name, variants in report.items() if len(variants) > 5} == {}
    for name, variants in report.items():
        for variant in variants:
            assert variant["stack_bytes"] == 0, f"{name} spills registers: {variant}"
            # Several programs on an SM hide each other's waiting.
            assert variant["shared_bytes"] <= min(80 * 1024, SHARED_MEMORY_BYTES[capability]), f"{name}: {variant}"
    shutil.rmtree(tmp_path)
