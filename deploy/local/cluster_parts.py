"""Defines what a local fleet runs on beside its own replicas: which process is which part of Ray, and what its end
means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`mark` is in its command line. A fleet does not outlive a vital part; Serve replaces the others. `behind` is the
    mark of the part that takes its traffic where there is one.
    """

    name: str
    mark: str
    is_vital: bool
    meaning: str
    behind: str | None = None


PARTS = (
    Part(
        name="Ray's GCS",
        mark="/gcs/gcs_server",
        is_vital=True,
        meaning="no process of the cluster can be started or found any more",
    ),
    Part(
        name="Ray's dashboard agent",
        mark="ray::DashboardAgent",
        is_vital=True,
        meaning="the raylet ends with it, and with that all units and gateways",
    ),
    Part(
        name="Ray's runtime environment agent",
        mark="ray::RuntimeEnvAgent",
        is_vital=True,
        meaning="the raylet ends with it, and with that all units and gateways",
    ),
    Part(name="Ray's raylet", mark="/raylet/raylet", is_vital=True, meaning="all units and gateways end with it"),
    Part(
        name="Serve's controller",
        mark="ray::ServeController",
        is_vital=False,
        meaning="requests are served; what dies meanwhile is replaced when it is back",
    ),
    Part(
        name="Serve's proxy",
        mark="ray::ProxyActor",
        is_vital=False,
        meaning="streams through it broke, clients must ask again",
        behind="ray::HAProxyManager",
    ),
    Part(
        name="Serve's HAProxy manager",
        mark="ray::HAProxyManager",
        is_vital=False,
        meaning="streams through it broke, clients must ask again",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded:
    part: Part
    pid: int
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBack:
    part: Part
    after_s: float


class PartsWatch:
    """Compares one look at the cluster's processes with the next."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._ended_s: dict[str, float] = {}

    @property
    def lacks_any(self) -> bool:
        """Says whether one has ended and is not back."""
        return bool(self._ended_s)

    def look(self, commands: Mapping[int, str], now_s: float) -> Sequence[PartEnded | PartBack]:
        """`commands`: command lines of what runs now, by process id. Vital parts come first, the cause before what it
        takes along.
        """
        changes: list[PartEnded | PartBack] = []
        for part in PARTS:
            running = sorted(pid for pid, command in commands.items() if part.mark in command)
            before = self._pids.get(part.name)
            if before is not None and before not in running:
                spared = part.behind is not None and any(part.behind in command for command in commands.values())
                meaning = "requests go through HAProxy, none is lost" if spared else part.meaning
                changes.append(PartEnded(part=part, pid=before, meaning=meaning))
                self._ended_s.setdefault(part.name, now_s)
                del self._pids[part.name]
            if running and part.name not in self._pids:
                self._pids[part.name] = running[0]
                if (ended_s := self._ended_s.pop(part.name, None)) is not None:
                    changes.append(PartBack(part=part, after_s=now_s - ended_s))
        return changes
