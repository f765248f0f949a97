"""What a decode launch sends to the device, and what it waits for."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import make_prompt, outputs
from cuda_rig import make_cuda_rig

from pdmux_actor.executor.cuda.device_attention import DeviceKv


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that launches waited for."""
    rows_waited_for: list[int] = []
    upload = DeviceKv.upload_missing

    def noted(self: DeviceKv, rows: np.ndarray, row_table: np.ndarray) -> None:
        rows_waited_for.extend(rows[~self.on_device[rows]].tolist())
        upload(self, rows, row_table)

    monkeypatch.setattr(DeviceKv, "upload_missing", noted)
    return rows_waited_for


def test_decode__beyond_its_rows_ends__sends_new_rows_blocks_without_waiting(
    tiny_checkpoints: Mapping[str, Path], waited: list[int]
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    rig.sequence("llama", make_prompt(4), 4)  # has row 0, which pads the others and is never computed
    sequences = [rig.sequence("llama", make_prompt(n), 12) for n in (3, 4, 6)]
    rig.prefill(sequences)
    rig.decode(sequences, 11, steps_per_launch=2)

    assert [len(tokens) for tokens in outputs(sequences, 12)] == [12, 12, 12]
    assert waited == []  # a row that a step begins is sent with it: nobody computed it before


def test_decode__context_that_was_never_computed__waits_for_its_rows_alone(
    tiny_checkpoints: Mapping[str, Path], waited: list[int]
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(10), 12)  # 9 tokens of context are in 3 rows
    rig.decode([sequence], 3)

    assert waited == sequence.rows[:3]
