"""Lets a model that finds too little memory on the device fail alone, and gives back what it took.

torch's allocator gives what it has in reserve back to the device when it finds no memory, but not while anything is
captured: a load beside captures of other models would find none although there is some. So a load has it given back
before, and after one that failed nothing stays in reserve, which libraries and captures of others could not use.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.loading import too_large
from pdmux_actor.models.memory_shortage import lacked_memory, let_go

Admit = Callable[[str, int], None]
"""Is told what takes memory, for people, and how many bytes that is."""


class ModelMemory:
    def __init__(self, lanes: LaneDevice, free_bytes: Callable[[], int], wake: Callable[[], None]) -> None:
        """`free_bytes`: for models. `wake` makes the engine's thread `take_news`."""
        self._lanes = lanes
        self._free_bytes = free_bytes
        self._wake = wake
        self._came_free = threading.Event()

    @contextmanager
    def of(self, model: str, what: str = "its tensors", num_bytes: int = 0) -> Iterator[Admit]:
        """Encloses what makes a model, or a part of it, on the device; whoever learns meanwhile how much that takes
        says so. What is made within is held by nobody but calls within.

        Raises ModelTooLarge: there was too little memory, and nothing of the model is there any more.
        """
        wanted = what, num_bytes

        def admit(what: str, num_bytes: int) -> None:
            nonlocal wanted
            wanted = what, num_bytes
            self._lanes.make_room(num_bytes)

        try:
            yield admit
        except RuntimeError as error:
            if not lacked_memory(error):
                raise
            told = str(error).split(". GPU ")[0].splitlines()[0]
            let_go(error)
        else:
            return
        self._lanes.give_back()
        self._came_free.set()
        self._wake()
        what, num_bytes = wanted
        raise too_large(model, f"the device ran out of memory ({told}): {what}", num_bytes, self._free_bytes())

    def take_news(self) -> bool:
        """Returns whether memory has come free since the last call, for which others may be waiting."""
        if not self._came_free.is_set():
            return False
        self._came_free.clear()
        return True
