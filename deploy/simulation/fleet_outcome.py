"""Defines what became of a run of a simulated fleet: plain data, which crosses processes."""

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.control.decision_history import PlacementDecision
from deploy.simulation.node_supply import NodeUse
from deploy.simulation.statistics import ModelStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """Holds what a unit reported of its partition and its KV pool."""

    time_s: float
    unit_id: str
    prefill_sms: int
    decode_sms: int
    used_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    """`duration_s` is virtual, from the start to the last end or refusal; the simulation itself ended at `ended_s`.
    `gave_up`: it was stopped before all had ended. `views`: how many of the `events` told gateways of the fleet.
    `decisions` are the control loop's, the newest first, as of its end. `node_use`: where nodes come and go.
    """

    models: Mapping[str, ModelStatistics]
    duration_s: float
    ended_s: float
    events: int
    steps: int
    gave_up: bool
    views: int = 0
    partitions: tuple[PartitionSample, ...] = ()
    decisions: tuple[PlacementDecision, ...] = ()
    node_use: NodeUse | None = None

    def decided_s(self, decision: PlacementDecision) -> float:
        """Returns when, in virtual time."""
        return self.ended_s - decision.seconds_ago

    def total(self) -> ModelStatistics:
        total = ModelStatistics()
        for statistics in self.models.values():
            total.merge(statistics)
        return total
