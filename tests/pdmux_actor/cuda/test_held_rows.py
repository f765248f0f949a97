"""A batch's rows on the host: what is kept is never another sequence's."""

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
def test_held_rows__any_batches_one_after_the_other__are_those_of_each_batch(batches: list[list[list[int]]]) -> None:
    held = HeldRows(num_places=4, max_rows=5)

    for batch in batches:
        rows, stride = held.of([holding(of_sequence) for of_sequence in batch])

        assert rows.shape == (4, stride)
        assert [rows[place, : len(wanted)].tolist() for place, wanted in enumerate(batch)] == batch


def test_held_rows__list_that_was_changed_in_place__is_seen() -> None:
    held, sequence = HeldRows(num_places=1, max_rows=3), holding([4, 5])
    held.of([sequence])
    sequence.rows[1] = 6
    sequence.rows.append(7)

    assert held.of([sequence])[0].tolist() == [[4, 6, 7]]
