"""A batch's rows on the host: what is kept is never another sequence's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.executor.cuda.held_rows import HeldRows
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

REQUEST = GenerateRequest(
    request_id="a",
    model="m",
    prompt_token_ids=(1,),
    sampling=SamplingParams(max_tokens=1),
    slo=Slo(ttft_s=1.0, tbt_s=1.0),
)
BATCHES = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=4), max_size=8)


def holding(rows: list[int]) -> TokenSequence:
    sequence = TokenSequence.from_request(REQUEST, 0.0)
    sequence.rows[:] = rows
    return sequence


@given(BATCHES)
def test_held_rows__any_batches_one_after_the_other__table_of_what_was_sent_has_those_of_each_batch(
    batches: list[list[list[int]]],
) -> None:
    held, device = HeldRows(num_places=4, max_rows=5), np.full(20, -1)

    for batch in batches:
        new = held.take([holding(of_sequence) for of_sequence in batch])
        device[new.places] = new.rows

        for table in (held.table, device.reshape(4, 5)):
            assert [table[place, : len(wanted)].tolist() for place, wanted in enumerate(batch)] == batch
        assert held.take([holding(of_sequence) for of_sequence in batch]).places.tolist() == []


def test_held_rows__sequence_that_grew__sends_its_new_rows_alone() -> None:
    held, sequence = HeldRows(num_places=2, max_rows=3), holding([4, 5])
    held.take([holding([1]), sequence])
    sequence.rows.append(7)

    new = held.take([holding([1]), sequence])

    assert (new.places.tolist(), new.rows.tolist()) == ([5], [7])


def test_held_rows__list_that_was_changed_in_place__is_seen() -> None:
    held, sequence = HeldRows(num_places=1, max_rows=3), holding([4, 5])
    held.take([sequence])
    sequence.rows[1] = 6
    sequence.rows.append(7)
    held.take([sequence])

    assert held.table.tolist() == [[4, 6, 7]]


def test_held_rows__forgotten__sends_all_again() -> None:
    held = HeldRows(num_places=1, max_rows=3)
    held.take([holding([4, 5])])
    held.forget()

    assert held.take([holding([4, 5])]).rows.tolist() == [4, 5]
