"""Divides a planning budget between the search and what follows it: putting the plan together and judging it."""

from collections.abc import Callable
from dataclasses import dataclass, field

_LEAST_KEPT, _MOST_KEPT = 0.15, 0.5  # of the budget, for what follows the search


@dataclass(slots=True)
class SearchTime:
    """Keeps for what follows a search what it took the last time: of a large fleet that is more than the least part."""

    now: Callable[[], float]
    _followed_s: float = field(default=0.0, init=False)
    _until_s: float = field(default=0.0, init=False)
    _was_up: bool = field(default=False, init=False)

    def begin(self, budget_s: float) -> None:
        kept_s = min(max(_LEAST_KEPT * budget_s, self._followed_s), _MOST_KEPT * budget_s)
        self._until_s, self._was_up = self.now() + budget_s - kept_s, False

    def is_up(self) -> bool:
        self._was_up |= self.now() >= self._until_s
        return self._was_up

    def end(self) -> None:
        """Takes note that the answer is there; a search that ended by itself says nothing of what follows one."""
        if self._was_up:
            self._followed_s = self.now() - self._until_s
