"""Holds what the pieces of a unit's scheduler work on together."""

from collections.abc import Mapping
from dataclasses import dataclass

from pdmux_actor.scheduling.batching import PrefillBatches
from pdmux_actor.scheduling.block_sharing import BlockSharing
from pdmux_actor.scheduling.launches_in_flight import LanesInFlight
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitParts:
    """The same for as long as the unit lives; what they hold changes with every event and launch."""

    device: DeviceSpec
    settings: SchedulerSettings
    predictor: LatencyPredictor
    queues: Mapping[str, ModelQueue]
    batches: PrefillBatches
    lanes: LanesInFlight
    sharing: BlockSharing
