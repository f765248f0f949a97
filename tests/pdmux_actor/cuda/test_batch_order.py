"""The order of a batch on the device: nobody is lost, and who stays keeps its place."""

from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.executor.cuda.host_reads import BatchOrder, places_in
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

REQUEST = GenerateRequest(
    request_id="a",
    model="m",
    prompt_token_ids=(1,),
    sampling=SamplingParams(max_tokens=1),
    slo=Slo(ttft_s=1.0, tbt_s=1.0),
)
SEQUENCES = [TokenSequence.from_request(REQUEST, 0.0) for _ in range(8)]
BATCHES = st.lists(st.lists(st.sampled_from(range(8)), unique=True, max_size=8), max_size=8)


@given(BATCHES)
def test_order__any_batches_one_after_the_other__has_each_sequence_once_and_who_stays_at_its_place(
    batches: list[list[int]],
) -> None:
    order, before = BatchOrder(), ()
    for names in batches:
        batch = tuple(SEQUENCES[name] for name in names)

        ordered = order.of(batch)

        assert len(ordered) == len(batch)
        assert [ordered[place] for place in places_in(ordered, batch)] == list(batch)
        for place, sequence in enumerate(before[: len(batch)]):
            assert sequence not in batch or ordered[place] is sequence
        assert order.of(batch) is ordered
        before = ordered


def test_order__first_of_a_batch_ends_and_another_joins__one_place_changes() -> None:
    order, (a, b, c, d, *_) = BatchOrder(), SEQUENCES
    order.of((a, b, c))

    assert order.of((b, c, d)) == (d, b, c)
