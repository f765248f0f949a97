from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.kv.prefix_cache import IdleRows

MODELS, ROWS = ("a", "b"), 40


@given(st.lists(st.tuples(st.sampled_from(MODELS), st.integers(0, ROWS - 1), st.integers(1, 400)), max_size=40))
def test_idle_rows__rows_come_and_go__are_in_the_order_of_their_last_use(steps):
    idle, expected = IdleRows(), OrderedDict[tuple[str, int], None]()
    for model in MODELS:
        idle.add_model(model)
    for model, row, times in steps:
        for _ in range(times):  # often enough that stale entries are cut
            if (model, row) in expected:
                idle.remove(model, row)
                del expected[model, row]
            idle.add(model, row)
            expected[model, row] = None
        if times % 3 == 0:
            oldest = idle.oldest()
            assert oldest == next(iter(expected))
            idle.remove(*oldest)
            del expected[oldest]

        assert len(idle) == len(expected)
        for name in MODELS:
            assert sorted(idle.of(name)) == sorted(row for other, row in expected if other == name)
        assert not expected or idle.oldest() == next(iter(expected))


def test_idle_rows__one_row_comes_and_goes_for_long__takes_no_more_memory():
    idle = IdleRows()
    idle.add_model("a")
    idle.add("a", 1)
    for _ in range(100_000):
        idle.add("a", 0)
        idle.remove("a", 0)

    assert len(idle._order) < 2_000
    assert idle.oldest() == ("a", 1)


def test_idle_rows__model_leaves_and_comes_back__old_entries_say_nothing_of_it():
    idle = IdleRows()
    for model in MODELS:
        idle.add_model(model)
    idle.add("a", 3)
    idle.add("b", 5)
    idle.remove("a", 3)
    idle.remove_model("a")
    idle.add_model("a")

    assert idle.oldest() == ("b", 5)
    idle.add("a", 3)
    idle.remove("b", 5)
    assert idle.oldest() == ("a", 3)
