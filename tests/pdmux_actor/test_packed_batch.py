import numpy as np
import torch

from pdmux_actor.executor.packed_batch import DecodeInputs, PackedBatch, pack
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.sequence import TokenSequence

TOKENS_PER_ROW = 4


def make_sequence(num_tokens: int, first_row: int) -> TokenSequence:
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt_token_ids=tuple(range(100, 100 + num_tokens)),
        sampling=SamplingParams(max_tokens=8),
        slo=Slo(ttft_s=1, tbt_s=1),
    )
    sequence = TokenSequence.from_request(request, 0.0)
    sequence.rows = list(range(first_row, first_row + -(-(num_tokens + 8) // TOKENS_PER_ROW)))
    return sequence


def pack_all(
    chunks: list[Chunk], decoding: list[TokenSequence], step: int = 0, max_group_rows: int = 1000
) -> PackedBatch:
    decodes = DecodeInputs.of(decoding)
    return pack(
        chunks,
        decodes,
        decodes.last_tokens(decoding),
        step=step,
        tokens_per_row=TOKENS_PER_ROW,
        max_group_rows=max_group_rows,
    )


def test_pack__chunks_and_decodes__lie_one_after_the_other() -> None:
    whole, part, decoding = make_sequence(5, 10), make_sequence(9, 20), make_sequence(6, 30)

    batch = pack_all([Chunk(whole, 0, 5), Chunk(part, 3, 4)], [decoding])

    assert batch.token_ids.tolist() == [100, 101, 102, 103, 104, 103, 104, 105, 106, 105]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 5]
    assert batch.token_rows.tolist() == [10, 10, 10, 10, 11, 20, 21, 21, 21, 31]
    assert batch.token_offsets.squeeze(1).tolist() == [0, 1, 2, 3, 0, 3, 0, 1, 2, 1]
    assert batch.sample_tokens.tolist() == [4, 9]  # `part` has tokens left
    assert [c.rows.tolist() for c in batch.chunks] == [[10, 11], [20, 21]]


def test_pack__rows_begun_but_not_filled__are_fresh() -> None:
    batch = pack_all([Chunk(make_sequence(6, 10), 0, 6)], [make_sequence(9, 20), make_sequence(10, 30)])

    # Row 10 is filled at once, 11 only begun; the decode at position 8 begins row 22, the one at 9 continues row 32.
    assert batch.fresh_rows.tolist() == [11, 22]


def test_pack__look_ahead_step__moves_every_decode_on() -> None:
    decoding = [make_sequence(3, 10), make_sequence(7, 20)]

    batch = pack_all([], decoding, step=2)

    assert batch.positions.tolist() == [8, 4]  # longest first
    assert batch.token_rows.tolist() == [22, 11]
    (group,) = batch.decodes
    assert group.context_tokens.tolist() == [9, 5]
    assert group.rows.tolist() == [[20, 21, 22], [10, 11, -1]]


def test_pack__lengths_far_apart__decode_in_groups_of_similar_length() -> None:
    lengths = [400, 12, 390, 180, 9, 60, 170]
    decoding = [make_sequence(length, 1000 * i) for i, length in enumerate(lengths)]

    batch = pack_all([], decoding)

    grouped = [group.context_tokens.tolist() for group in batch.decodes]
    assert grouped == [[400, 390], [180, 170], [60], [12, 9]]
    assert [group.first for group in batch.decodes] == [0, 2, 4, 5]
    padded = sum(group.rows.size for group in batch.decodes)
    needed = sum(-(-length // TOKENS_PER_ROW) for length in lengths)
    assert padded < 2 * needed


def test_pack__group_limit__bounds_what_is_read_at_once() -> None:
    batch = pack_all([], [make_sequence(40, 1000 * i) for i in range(7)], max_group_rows=25)

    assert [len(group.context_tokens) for group in batch.decodes] == [2, 2, 2, 1]
    alone = pack_all([], [make_sequence(400, 0), make_sequence(400, 500)], max_group_rows=25)
    assert [len(group.context_tokens) for group in alone.decodes] == [1, 1]


def test_decode_inputs__order__names_places_in_the_launch() -> None:
    decoding = [make_sequence(3, 0), make_sequence(9, 10), make_sequence(5, 20)]

    inputs = DecodeInputs.of(decoding)

    assert inputs.order.tolist() == [1, 2, 0]
    assert torch.equal(inputs.last_tokens(decoding), torch.tensor([108, 104, 102]))
    assert np.array_equal(inputs.positions, [8, 4, 2])
