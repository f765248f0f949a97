"""Measures what it takes from wanting a node to a model that is ready on it."""

from collections import deque
from collections.abc import Sequence

from deploy.control.unit_registry import KnownUnit
from pdmux_actor.lease import ModelPhase

_WEIGHT = 0.3  # of the newest measurement


class LeadTime:
    """`provision_s`: from the wish to the first heartbeat of the node's units, as long as nothing was measured what
    the fleet file says. `load_s`: from there until a unit has a model ready; 0 until measured.
    """

    def __init__(self, provision_s: float) -> None:
        self.provision_s = provision_s
        self.load_s = 0.0
        self._is_measured = False
        self._wished_s: deque[float] = deque()
        self._known: set[str] | None = None
        self._empty_since_s: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        return self.provision_s + self.load_s

    def wish(self, nodes: int, now_s: float) -> None:
        """So many nodes were wanted in addition; fewer than 0: no longer."""
        self._wished_s.extend([now_s] * nodes)
        for _ in range(min(-nodes, len(self._wished_s))):
            self._wished_s.pop()

    def see(self, units: Sequence[KnownUnit], units_per_node: int, now_s: float) -> None:
        """`units`: those of the pool. The first look measures nothing: they may be older than the wish."""
        present = {u.unit_id for u in units}
        fresh = set() if self._known is None else present - self._known
        self._known = present
        for _ in range(-(-len(fresh) // units_per_node)):
            if self._wished_s:
                self._note_provision(now_s - self._wished_s.popleft())
                self._empty_since_s |= dict.fromkeys(fresh, now_s)
        for unit in units:
            since_s = self._empty_since_s.get(unit.unit_id)
            if since_s is not None and any(s.phase is ModelPhase.READY for s in unit.report.models):
                del self._empty_since_s[unit.unit_id]
                self.load_s += (_WEIGHT if self.load_s else 1.0) * (now_s - since_s - self.load_s)
        self._empty_since_s = {i: s for i, s in self._empty_since_s.items() if i in present}

    def _note_provision(self, took_s: float) -> None:
        self.provision_s += (_WEIGHT if self._is_measured else 1.0) * (took_s - self.provision_s)
        self._is_measured = True
