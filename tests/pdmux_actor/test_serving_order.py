from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.scheduling.serving_order import Candidate, serving_order

EIGHTHS = st.integers(1, 24).map(lambda eighths: eighths / 8)  # their sums are exact
CANDIDATES = st.lists(st.builds(Candidate, due_s=EIGHTHS, work_s=EIGHTHS), max_size=6)
WEIGHTED = st.lists(st.builds(Candidate, due_s=EIGHTHS, work_s=EIGHTHS, weight=EIGHTHS), max_size=12)


def in_time(candidates, order, free_s):
    count, end_s = 0, free_s
    for index in order:
        end_s += candidates[index].work_s
        count += end_s <= candidates[index].due_s
    return count


@given(CANDIDATES, EIGHTHS)
def test_serving_order__equal_weights__no_order_has_more_in_time(candidates, free_s):
    order = serving_order(candidates, free_s=free_s)
    best = max(in_time(candidates, other, free_s) for other in permutations(range(len(candidates))))
    assert len(order.in_time) == in_time(candidates, order.in_time, free_s) == best


@given(WEIGHTED, EIGHTHS)
def test_serving_order__any_weights__what_is_kept_is_in_time_and_nothing_is_lost(candidates, free_s):
    order = serving_order(candidates, free_s=free_s)
    assert in_time(candidates, order.in_time, free_s) == len(order.in_time)
    assert sorted([*order.in_time, *order.late]) == list(range(len(candidates)))
    assert [candidates[i].due_s for i in order.in_time] == sorted(candidates[i].due_s for i in order.in_time)


def test_serving_order__weight__the_heavier_of_two_is_kept():
    rivals = [Candidate(due_s=1.0, work_s=0.8), Candidate(due_s=1.0, work_s=0.9, weight=2.0)]
    assert serving_order(rivals, free_s=0.0).in_time == [1]
