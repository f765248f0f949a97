from hypothesis import given
from hypothesis import strategies as st

from profiler.contention import ContentionGuard, GuardCell, power_of_four
from profiler.latency import ChunkShape

CELL = GuardCell.of(16, [ChunkShape(2048, 0)], [1024] * 8)


def test_guard__unseen_cell__says_prior():
    assert ContentionGuard(prior=1.3).slowdown(CELL) == 1.3


def test_guard__profiled_cell__says_grid_until_it_has_seen_enough():
    guard = ContentionGuard(grid={CELL: 1.1})
    assert guard.slowdown(CELL) == 1.1

    guard.observe(CELL, 1.25)
    assert guard.slowdown(CELL) == 1.25


def test_guard__many_mild_observations__come_down_from_the_prior():
    guard = ContentionGuard(prior=1.3)
    for slowdown in (1.02, 1.05, 1.01, 1.04):
        guard.observe(CELL, slowdown)

    assert guard.slowdown(CELL) == 1.05
    assert guard.cells_moved == 1


def test_guard__old_worst_case__is_forgotten():
    guard = ContentionGuard()
    guard.observe(CELL, 3.0)
    for _ in range(32):
        guard.observe(CELL, 1.1)

    assert guard.slowdown(CELL) == 1.1


def test_guard__what_it_learned__is_the_grid_of_another():
    guard = ContentionGuard()
    guard.observe(CELL, 1.7)

    assert ContentionGuard(grid=dict(guard.items())).slowdown(CELL) == 1.7


def test_guard__measurements_that_are_no_numbers__are_refused():
    guard = ContentionGuard(prior=1.3)
    guard.observe(CELL, float("inf"))
    guard.observe(CELL, float("nan"))

    assert guard.slowdown(CELL) == 1.3


def test_guard__one_stall_among_many__is_not_the_worst_case():
    """A process that was put aside for a moment: the share would be avoided for as long as the cell remembers it."""
    guard = ContentionGuard()
    for slowdown in (1.1, 1.2, 1.1, 1.15, 2.9, 1.1, 1.1, 1.1):
        guard.observe(CELL, slowdown)
    assert guard.slowdown(CELL) == 1.2

    guard.observe(CELL, 2.7)
    assert guard.slowdown(CELL) == 2.7


@given(st.lists(st.floats(0.1, 5.0), max_size=80))
def test_guard__any_observations__never_below_one_and_at_most_one_recent_is_above(observed):
    guard = ContentionGuard()
    for slowdown in observed:
        guard.observe(CELL, slowdown)

    recent, said = observed[-32:], guard.slowdown(CELL)
    assert said >= 1.0
    assert sum(slowdown > said for slowdown in recent) <= (1 if len(recent) >= 8 else 0)


@given(st.integers(1, 10**9))
def test_power_of_four__any_count__brackets_it(count):
    index = power_of_four(count)
    assert 4 ** (index - 1) <= count < 4**index
