"""What an engine on cores keeps for products of any number of rows."""

import os
import subprocess
import sys

import pytest
import torch

from pdmux_actor.serving.engine_environment import ENGINE_ENVIRONMENT

_PRODUCTS = """
import psutil, torch
torch.set_num_threads(1)
weights = [torch.ops.mkldnn._reorder_linear_weight(torch.randn(64 + 8 * i, 64), 256) for i in range(4)]
inputs = torch.randn(400, 64)
before = psutil.Process().memory_info().rss
with torch.inference_mode():
    for rows in range(1, 400):
        for weight in weights:
            torch.ops.mkldnn._linear_pointwise(inputs[:rows], weight, None, "none", [], "")
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch multiplies without oneDNN")
def test_environment__products_of_many_lengths__little_is_kept_of_each() -> None:
    """An engine grew from 560 to 1,630 MB in six minutes of chats."""

    def grown_bytes(environment: dict[str, str]) -> int:
        run = subprocess.run(
            [sys.executable, "-c", _PRODUCTS], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        return int(run.stdout)

    own = {name: value for name, value in os.environ.items() if name not in ENGINE_ENVIRONMENT}

    assert grown_bytes({**own, **ENGINE_ENVIRONMENT}) < 0.5 * grown_bytes(own)
