"""Keeps graphs that nobody launches any more until there is time to destroy them, one after the other."""

from collections.abc import Sequence

from pdmux_actor.executor.cuda.graph_key import Step


class DiscardedGraphs:
    """The driver frees a graph node by node: a model has a thousand graphs, and a loop that waited for all of them
    would stand. Until the last of a shape is destroyed its memory counts as held.
    """

    def __init__(self) -> None:
        self._shapes: list[tuple[list[Step], int]] = []

    def add(self, replays: Sequence[Step], own_bytes: int) -> None:
        """Graphs of one shape. The caller keeps no reference to any of them."""
        if replays:
            self._shapes.append((list(replays), own_bytes))

    @property
    def own_bytes(self) -> int:
        return sum(own_bytes for _, own_bytes in self._shapes.copy())  # a thread that loads a model asks, too

    def destroy_one(self) -> bool:
        """Returns whether there was one."""
        if not self._shapes:
            return False
        replays, _ = self._shapes[-1]
        replays.pop()
        if not replays:
            self._shapes.pop()
        return True

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def clear(self) -> None:
        self._shapes.clear()
