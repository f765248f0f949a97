"""Reading parts of a checkpoint on several threads."""

import gc
import threading
import weakref

import pytest

from pdmux_actor.models.memory_shortage import let_go
from pdmux_actor.models.weights import on_threads


class Weight:
    """Stands for a tensor, which takes memory for as long as anybody holds it."""


def test_on_threads__several_fail_at_once__what_their_calls_had_made_goes_with_the_error_that_is_raised() -> None:
    made: list[weakref.ref[Weight]] = []
    both_have_made_one = threading.Barrier(2)

    def read(name: str) -> None:
        weight = Weight()
        made.append(weakref.ref(weight))
        both_have_made_one.wait(timeout=10)
        raise RuntimeError(name)

    gc.disable()
    try:
        with pytest.raises(RuntimeError, match=r"^first$") as met:
            on_threads(read, ["first", "second"], 2)
        let_go(met.value)
        assert [weight() for weight in made] == [None, None]
    finally:
        gc.enable()
