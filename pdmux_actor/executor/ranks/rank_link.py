"""Defines what a leading rank needs of the others, wherever they run."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from pdmux_actor.executor.ranks.rank_frames import FromRank, PartCall, ToRank

Result = TypeVar("Result")


class RankLink(Protocol):
    num_ranks: int

    def tell(self, frame: ToRank) -> None:
        """All ranks get it, all in the same order. May be called on any thread."""
        ...

    def call(self, frame: PartCall, meanwhile: Callable[[], Result]) -> tuple[tuple[FromRank, ...], Result]:
        """Returns every rank's answer, and what this one did while they worked. What `meanwhile` raises is raised when
        all have answered. One call at a time.
        """
        ...

    def end_unit(self, reason: str) -> None:
        """Ends this process and all ranks: they are no longer at the same place."""
        ...

    def close(self) -> None: ...
