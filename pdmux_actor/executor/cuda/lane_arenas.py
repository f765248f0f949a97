"""Reserves what launches compute in: an arena of one size for the prefill lane and for the decode lane."""

import logging
from collections.abc import Callable, Iterable, Mapping

import torch

from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.workspace import LaneArena
from pdmux_actor.scheduling.launch import FIRST_DECODE_LANE, PREFILL_LANE
from placement.estimation.memory import workspace_bytes
from placement.launch_limits import LaunchLimits

_LOG = logging.getLogger(__name__)
# Further decode lanes run single tokens only, from graphs or in what torch keeps for a stream.
_LANES = (PREFILL_LANE, FIRST_DECODE_LANE)


class LaneArenas:
    """An arena's size changes when its lane has no launch in flight, and no prefill between two slices."""

    def __init__(self, limits: LaunchLimits, num_ranks: int, free_bytes: Callable[[], int]) -> None:
        self._limits = limits
        self._num_ranks = num_ranks
        self._free_bytes = free_bytes
        self._num_bytes = 0
        self._settled: dict[int, int] = {}  # lane number -> size for which it was last asked

    def serve(self, models: Iterable[ModelInfo]) -> None:
        """Makes arenas be for the largest launch of any of these, from now on."""
        self._num_bytes = max((self._bytes_of(info) for info in models), default=0)

    def reserved_bytes(self, arenas: Mapping[int, LaneArena]) -> int:
        """The prefill lane's part, which is in every plan, less what arenas have yet to grow by."""
        waiting = (n for n in _LANES if n in arenas and self._settled.get(n) != self._num_bytes)
        outstanding = sum(max(0, self._num_bytes - arenas[n].num_bytes) for n in waiting)
        return arenas[PREFILL_LANE].num_bytes - outstanding

    def resize(self, number: int, arena: LaneArena) -> None:
        """Gives a lane without a launch in flight what launches need. Its streams must not run before what the current
        one holds now.
        """
        if self._settled.get(number) == self._num_bytes or number not in _LANES or arena.holds_any:
            return
        # Ranks that follow do not know what is in flight.
        if self._num_ranks > 1 and arena.num_bytes:
            return
        self._settled[number] = self._num_bytes
        free_bytes = self._free_bytes() + arena.num_bytes
        if self._num_bytes <= free_bytes:
            try:
                arena.resize(self._num_bytes)
            except torch.OutOfMemoryError:  # a model that is being loaded was faster, or free memory lies in pieces
                free_bytes = self._free_bytes()
            else:
                return
        _LOG.warning(
            "a lane has no memory of its own for launches (%d bytes, %d are free): each partition keeps what its"
            " launches took, and one may run out of memory; lower kv_memory",
            self._num_bytes,
            free_bytes,
        )

    def _bytes_of(self, info: ModelInfo) -> int:
        spec, num_ranks = info.whole or info.spec, self._num_ranks
        return workspace_bytes(spec, num_ranks, self._limits, info.max_model_len) // num_ranks


def arena_facts(arenas: Iterable[LaneArena]) -> dict[str, int]:
    """Returns what arenas have, the most that launches took of it, and the most that they took beside it at once."""
    held = [arena for arena in arenas if arena.num_bytes]
    return {
        "arena_bytes": sum(arena.num_bytes for arena in held),
        "arena_taken_bytes": max((arena.most_taken_bytes for arena in held), default=0),
        "beside_arena_bytes": max((arena.most_beyond_bytes for arena in held), default=0),
    }
