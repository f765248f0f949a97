"""Captured decode steps and layers of prompts: CUDA graphs per batch bucket and partition, within a budget of memory.

A captured graph keeps the SMs of the stream it was captured on, hence one for each partition (research: MuxWise §4.5
measured 6.2 % of memory for 6 partitions x 20 sizes). A capture takes about as long as three steps, so it is made when
no launch waits for it: those that are likely (capture_plan.py) when a model is attached, others while the lanes are
idle. A shape that comes without a graph runs launch by launch; one that comes again and again is captured even if the
lanes are never idle, and if the budget is spent, in place of the one that has not been used for longest. Layers of a
prompt and pieces of a fused step are captured one at a time, so that a request that comes meanwhile, or the launch that
asks for them, waits for one of them at most. A capture that finds no memory waits until some has come free. Graphs of a
model that leaves are destroyed one at a time, too.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdmux_actor.executor.cuda.graph_capture import Capture
from pdmux_actor.executor.cuda.graph_key import OF_TOKENS, GraphKey, PlannedCapture, Step
from pdmux_actor.models.memory_shortage import lacked_memory

_LOG = logging.getLogger(__name__)

# A step that is launched one by one costs the host some 3 ms more than its graph, a capture 20 to 25 ms.
_MISSES_WORTH_A_CAPTURE = 8


@dataclass(slots=True)
class _Begun:
    """`steps`: all of a shape, in order, of which `replays` are captured."""

    steps: Sequence[Step]
    replays: list[Step] = field(default_factory=list)
    own_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return len(self.replays) == len(self.steps)


class LaunchGraphs:
    """`capture` None runs every step launch by launch."""

    def __init__(self, capture: Capture | None, budget_bytes: int) -> None:
        self._capture = capture if budget_bytes > 0 else None
        self.budget_bytes = budget_bytes
        self._graphs: dict[GraphKey, tuple[Sequence[Step], int]] = {}  # the one that was used last is the last
        self._begun: dict[GraphKey, _Begun] = {}  # these are planned yet
        self._discarded = DiscardedGraphs()
        self._planned: dict[GraphKey, PlannedCapture] = {}
        self._misses: dict[GraphKey, int] = {}
        self._failed: set[GraphKey] = set()
        self._short_of_memory: set[GraphKey] = set()
        self._put_off: dict[GraphKey, PlannedCapture] = {}  # until memory has come free
        self._shared_bytes = 0
        self.idle_bytes = 0
        """What graphs' intermediate values leave of their memory between replays: nobody else can have it."""
        self._has_warned = False
        self.num_evicted = 0
        self.num_in_traffic = 0  # captures for which a launch waited

    @property
    def used_bytes(self) -> int:
        graphs, begun = list(self._graphs.values()), list(self._begun.values())  # a thread that loads a model asks, too
        of_begun = sum(capture.own_bytes for capture in begun)
        return self._shared_bytes + self._discarded.own_bytes + of_begun + sum(own_bytes for _, own_bytes in graphs)

    @property
    def unused_budget_bytes(self) -> int:
        """Returns what graphs may take yet: what they have taken already nobody has free."""
        return max(0, self.budget_bytes - self.used_bytes)

    @property
    def num_failed(self) -> int:
        """Decode steps that could not be captured."""
        return sum(key.part not in OF_TOKENS for key in self._failed)

    @property
    def num_planned(self) -> int:
        """Captures that wait for a moment without launches."""
        return len(self._planned)

    def __len__(self) -> int:
        return len(self._graphs)

    def facts(self) -> dict[str, int]:
        """Returns how many shapes were captured, could not be (layers of prompts by themselves: decode may go well),
        found no memory, made room for others, had a launch wait for them and wait to be captured; and the device memory
        that graphs hold.
        """
        return {
            "graphs": len(self),
            "graphs_that_failed": self.num_failed,
            "prompt_graphs_that_failed": len(self._failed) - self.num_failed,
            "graphs_without_memory": len(self._short_of_memory),
            "graphs_evicted": self.num_evicted,
            "graphs_in_traffic": self.num_in_traffic,
            "graphs_planned": self.num_planned,
            "graph_bytes": self.used_bytes,
        }

    def plan(self, captures: Iterable[PlannedCapture]) -> None:
        """Adds captures, the likeliest first, which wait for `next_planned`."""
        if self._capture is not None:
            self._planned.update((planned.key, planned) for planned in captures)

    def num_planned_of(self, model: str) -> int:
        return sum(key.model == model for key in self._planned)

    def next_planned(self) -> PlannedCapture | None:
        """Returns the likeliest one that is not captured yet. Once the budget is spent only those are left that
        launches have asked for: they alone may take the place of others. None where intermediate values alone fill it:
        no other that goes would make room.
        """
        while self._planned:
            asked_for = self._most_missed()
            spent_bytes = self.used_bytes if asked_for is None else self._shared_bytes
            if spent_bytes >= self.budget_bytes:
                self._planned.clear()
                self._drop_begun()
                break
            planned = self._planned[asked_for or next(iter(self._planned))]
            if self._can_capture(planned.key):
                return planned
            del self._planned[planned.key]
        return None

    def find(self, key: GraphKey) -> Sequence[Step] | None:
        """Returns what was captured, to be replayed."""
        found = self._graphs.pop(key, None)
        if found is None:
            return None
        self._graphs[key] = found
        return found[0]

    def wants(self, key: GraphKey, stream: Any) -> bool:
        """Returns whether a launch shall `capture` before it goes on. Notes what it lacks otherwise."""
        if not self._can_capture(key):
            return False
        misses = self._misses[key] = self._misses.get(key, 0) + 1
        if misses < _MISSES_WORTH_A_CAPTURE:
            self._planned.setdefault(key, PlannedCapture(key, stream))
            return False
        if self._shared_bytes >= self.budget_bytes and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "intermediate values of %d graphs fill their budget of %d bytes; further shapes run launch by launch",
                len(self._graphs),
                self.budget_bytes,
            )
        if self._shared_bytes >= self.budget_bytes or self._discarded:  # of which memory is about to come free
            return False
        self.num_in_traffic += 1
        return True

    def capture(self, key: GraphKey, steps: Callable[[], Sequence[Step]], stream: Any) -> None:
        """Captures one of `steps`, which runs meanwhile: the caller's inputs must be padding. It is the first that is
        left, and once none is the shape is captured. `steps` are asked for once.
        """
        assert self._capture is not None, "steps are not captured"
        while self._graphs and self.used_bytes >= self.budget_bytes:
            oldest = self._oldest(key)
            if oldest is None:
                self._wait_for_memory(PlannedCapture(key, stream))
                return
            self._evict(oldest)
        begun = self._begun.get(key) or _Begun(steps())
        try:
            replay, own_bytes = self._capture(begun.steps[len(begun.replays)], stream)
        except Exception as error:  # launched one by one it may work; if the device is lost, that says so
            self._give_up(PlannedCapture(key, stream), error)
            self._count_shared()
            return
        begun.replays.append(replay)
        begun.own_bytes += own_bytes
        if not begun.is_whole:
            self._begun[key] = begun
            self._planned.setdefault(key, PlannedCapture(key, stream))
            return
        self._forget_capture(key)
        self._graphs[key] = begun.replays, begun.own_bytes
        self._count_shared()

    def _give_up(self, planned: PlannedCapture, error: Exception) -> None:
        key = planned.key
        if lacked_memory(error):
            self.put_off(planned, error)
            return
        _LOG.error("what cannot be captured runs launch by launch: %s", key, exc_info=error)
        self._failed.add(key)
        self._forget_capture(key)
        # As likely as not the others fail alike: they wait until a launch asks for them.
        like_it = [k for k in self._planned if (k.model, k.part) == (key.model, key.part)]
        for other in like_it:
            self._forget_capture(other)
        self._let_go_of_an_empty_pool()

    def _forget_capture(self, key: GraphKey) -> None:
        self._planned.pop(key, None)
        self._misses.pop(key, None)
        self._begun.pop(key, None)

    def memory_came_free(self) -> None:
        """Captures that found no memory are planned again."""
        self._planned.update(self._put_off)
        self._put_off.clear()
        self._short_of_memory.clear()

    def put_off(self, short: PlannedCapture, error: Exception) -> None:
        """`short` found no memory, and what is planned would not, either. Launches may ask for the latter earlier."""
        _LOG.warning(
            "%s finds no memory; it and %d that are planned run launch by launch until some comes free: %s",
            short.key,
            len(self._planned),
            error,
        )
        self._misses.pop(short.key, None)
        self._short_of_memory.add(short.key)
        self._put_off.update({short.key: short, **self._planned})
        self._planned.clear()
        self._drop_begun()

    def forget_model(self, model: str) -> None:
        """Its graphs are to be destroyed, see `destroy_one`. Memory of intermediate values stays with the graphs that
        are left, and goes with the last one.
        """
        for key in [key for key in self._graphs if key.model == model]:
            self._discarded.add(*self._graphs.pop(key))
        for key in [key for key in self._begun if key.model == model]:
            begun = self._begun.pop(key)
            self._discarded.add(begun.replays, begun.own_bytes)
        self._planned = {key: planned for key, planned in self._planned.items() if key.model != model}
        self._misses = {key: misses for key, misses in self._misses.items() if key.model != model}
        self._failed = {key for key in self._failed if key.model != model}
        self._put_off = {key: planned for key, planned in self._put_off.items() if key.model != model}
        self._short_of_memory = {key for key in self._short_of_memory if key.model != model}
        self._let_go_of_an_empty_pool()

    def destroy_one(self) -> bool:
        """Destroys a graph that nobody launches any more. Returns whether there was one. With the last of them memory
        comes free.
        """
        if not self._discarded.destroy_one():
            return False
        if not self._discarded:
            self._let_go_of_an_empty_pool()
            self.memory_came_free()
        return True

    def clear(self) -> None:
        """A graph belongs to the context of its stream, and must go before it."""
        self._graphs.clear()
        self._begun.clear()
        self._discarded.clear()
        self._planned.clear()
        self._put_off.clear()
        self._misses.clear()
        self._let_go()

    def _can_capture(self, key: GraphKey) -> bool:
        refused = key in self._failed or key in self._short_of_memory
        return self._capture is not None and key not in self._graphs and not refused

    def _most_missed(self) -> GraphKey | None:
        waiting = [key for key in self._misses if key in self._planned]  # of many models' plans few were asked for
        return max(waiting, key=lambda key: self._misses[key], default=None)

    def _oldest(self, wanted: GraphKey) -> GraphKey | None:
        """Returns what makes room for `wanted`. A decode step without its graph costs more than the many of one shape
        of tokens save, so that these take the place of their like only.
        """
        return next((k for k in self._graphs if wanted.part not in OF_TOKENS or k.part in OF_TOKENS), None)

    def _wait_for_memory(self, short: PlannedCapture) -> None:
        self._forget_capture(short.key)
        self._short_of_memory.add(short.key)
        self._put_off[short.key] = short
        self._let_go_of_an_empty_pool()
        self._count_shared()

    def _evict(self, key: GraphKey) -> None:
        del self._graphs[key]  # the driver keeps one that is being replayed until it is over
        self.num_evicted += 1
        self._let_go_of_an_empty_pool()

    def _drop_begun(self) -> None:
        self._begun.clear()  # a shape or two: somebody waits for its memory
        self._let_go_of_an_empty_pool()

    def _count_shared(self) -> None:
        if self._capture is None or not self._holds_any:
            self._shared_bytes = self.idle_bytes = 0
        else:
            self._shared_bytes, self.idle_bytes = self._capture.shared_bytes(), self._capture.idle_bytes()

    @property
    def _holds_any(self) -> bool:
        return bool(self._graphs or self._begun or self._discarded)

    def _let_go_of_an_empty_pool(self) -> None:
        if not self._holds_any:
            self._let_go()

    def _let_go(self) -> None:
        self._shared_bytes = self.idle_bytes = 0
        if self._capture is not None:
            self._capture.renew()


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
