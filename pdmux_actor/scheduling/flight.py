"""What is on the lanes, with which share, and what was predicted for it."""

from dataclasses import dataclass

from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, Lane, MixedStep, PrefillSlice, Repartition, lane_of
from pdmux_actor.scheduling.policies.base import LaneState


@dataclass(slots=True)
class _Flight:
    launch: ComputeLaunch
    sms: int
    predicted_s: float
    overlapped: bool
    disturbed: bool = False  # the other lane started after this one did


@dataclass(frozen=True, slots=True)
class Landing:
    """`predicted_s` is None when the launch ran partly alone and partly not, so that it teaches nothing."""

    phase: str
    overlapped: bool
    predicted_s: float | None


class LanesInFlight:
    def __init__(self, total_sms: int) -> None:
        self._total_sms = total_sms
        self._lanes: dict[Lane, _Flight] = {}
        self.partition = Repartition(prefill_sms=0, decode_sms=total_sms)

    def busy(self, lane: Lane) -> bool:
        return lane in self._lanes

    @property
    def all_busy(self) -> bool:
        return len(self._lanes) == len(Lane)

    def uses(self, model: str) -> bool:
        return any(flight.launch.model == model for flight in self._lanes.values())

    def lane_state(self, lane: Lane) -> LaneState:
        flight = self._lanes.get(lane)
        return LaneState(busy=flight is not None, sms=0 if flight is None else flight.sms)

    def repartition(self, lane: Lane, sms: int) -> Repartition | None:
        """The partition that gives `lane` its share for the next launch; None when it is in force already.

        The other lane keeps what its launch in flight holds; an idle one is given the rest.
        """
        other = self._lanes.get(Lane.DECODE if lane is Lane.PREFILL else Lane.PREFILL)
        other_sms = self._total_sms - sms if other is None else other.sms
        assert 0 < sms <= self._total_sms - other_sms, "partition shares exceed the device"
        shares = (sms, other_sms) if lane is Lane.PREFILL else (other_sms, sms)
        partition = Repartition(prefill_sms=shares[0], decode_sms=shares[1])
        if partition == self.partition:
            return None
        self.partition = partition
        return partition

    def take_off(self, launch: ComputeLaunch, sms: int, predicted_s: float) -> None:
        lane = lane_of(launch)
        assert lane not in self._lanes, f"the {lane.value} lane is busy"
        for other in self._lanes.values():
            other.disturbed = not other.overlapped
        self._lanes[lane] = _Flight(launch, sms, predicted_s, overlapped=bool(self._lanes))

    def land(self, launch: ComputeLaunch) -> Landing:
        flight = self._lanes.pop(lane_of(launch))
        assert flight.launch is launch, "completions come in the order of launches"
        predicted_s = None if flight.disturbed else flight.predicted_s
        return Landing(phase_of(launch), flight.overlapped, predicted_s)


def phase_of(launch: ComputeLaunch) -> str:
    match launch:
        case PrefillSlice():
            return "prefill"
        case DecodeStep():
            return "decode"
        case MixedStep():
            return "mixed"
