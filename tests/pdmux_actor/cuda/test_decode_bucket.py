"""What a decode launch sends to the device, and what it waits for."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES, make_cuda_rig

from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.host_stage import Arrays, HostStage
from pdmux_actor.scheduling.launch import DecodeStep


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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Names of what was sent to the device, launch by launch."""
    names: list[set[str]] = []
    send = HostStage.send

    def noted(self: HostStage, arrays: Arrays, *rest: object) -> dict[str, torch.Tensor]:
        names.append(set(arrays))
        return send(self, arrays, *rest)

    monkeypatch.setattr(HostStage, "send", noted)
    return names


NEW_ROWS, BEGUN = {"row_places", "new_rows"}, {"begun_rows", "begun_blocks"}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": -3}], ids=["greedy", "drawn"])
def test_decode__goes_on_where_the_last_launch_ended__sends_new_rows_alone(
    tiny_checkpoints: Mapping[str, Path], sent: list[set[str]], sampling: dict[str, object]
) -> None:
    produced = []
    for rig in (make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)):
        rig.load("llama", tiny_checkpoints["llama"], dtype="float32")
        sequences = [rig.sequence("llama", make_prompt(n), 3, **sampling) for n in (2, 4)]
        rig.prefill(sequences)
        for step in range(6):
            if step == 2:  # as the engine does when a row is full
                for sequence in sequences:
                    rig.give_rows(sequence, 12)
            rig.decode(sequences, 1)
        produced.append(outputs(sequences, 7))

    assert produced[0] == produced[1]
    _warm_up, _prefill, first, *later = sent
    assert {"positions", "new_rows"} <= first
    # The second sequence's token at 4 begins a row in step 0, the one at 8 in step 4; the first one's at 4 in step 2.
    assert later == [NEW_ROWS | BEGUN, BEGUN]


def test_decode__batch_changed_or_grew_elsewhere__sends_tokens_anew(
    tiny_checkpoints: Mapping[str, Path], sent: list[set[str]]
) -> None:
    produced, begun = [], 0
    for rig in (make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)):
        rig.load("qwen3", tiny_checkpoints["qwen3"], dtype="float32")
        first, second, third = (rig.sequence("qwen3", make_prompt(n), 20) for n in (3, 6, 9))
        rig.prefill([first, second, third])
        rig.decode([first, second], 1)
        begun = begun or len(sent)
        rig.decode([second, first], 1)  # in the order of before on the device
        rig.decode([second], 1)  # in another bucket
        rig.decode([second, first], 1)  # the second one has grown since
        rig.decode([third, first], 2, steps_per_launch=2)
        rig.decode([third, first], 1)
        produced.append(outputs([first, second, third], 4))

    assert produced[0] == produced[1]
    assert ["positions" in names for names in sent[begun : begun + 4]] == [False, True, True, True]


@pytest.mark.parametrize("reports", [{}, {"logprobs": 2}], ids=["plain", "with reports"])
def test_decode__members_change_from_launch_to_launch__each_gets_its_own_tokens(
    tiny_checkpoints: Mapping[str, Path], sent: list[set[str]], reports: dict[str, object]
) -> None:
    batches = [(0, 1, 2), (1, 2), (1, 2, 3), (3, 2, 1), (3, 0)]
    produced = []
    for rig in (make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)):
        rig.load("llama", tiny_checkpoints["llama"], dtype="float32")
        settings = ({}, {"temperature": 0.8, "seed": 4}, {**reports}, {"temperature": 1.2, "seed": 5, "top_k": 9})
        sequences = [rig.sequence("llama", make_prompt(3 + i), 16, **s) for i, s in enumerate(settings)]
        rig.prefill(sequences)
        for batch in batches:
            rig.decode([sequences[name] for name in batch], 1)
        produced.append([list(sequence.token_ids) for sequence in sequences])

    assert produced[0] == produced[1]


def test_decode__launch_failed__the_next_one_sends_everything(
    tiny_checkpoints: Mapping[str, Path], sent: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(5), 12)
    rig.prefill([sequence])
    rig.decode([sequence], 1)
    del sent[:]

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(DecodeBucket, "sample", fails)
        rig.executor.submit(DecodeStep(model="llama", sequences=(sequence,)))
        assert "out of memory" in str(rig.wait().error)
    rig.decode([sequence], 1)

    assert "positions" in sent[-1]


def test_decode__upload_of_rows_fails__they_are_sent_again(
    tiny_checkpoints: Mapping[str, Path], sent: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_cuda_rig()
    rig.load("llama", tiny_checkpoints["llama"])
    sequence = rig.sequence("llama", make_prompt(5), 12)
    rig.prefill([sequence])

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(HostStage, "send", fails)
        rig.executor.submit(DecodeStep(model="llama", sequences=(sequence,)))
        assert rig.wait().error is not None
    rig.decode([sequence], 1)

    assert "new_rows" in sent[-1]
