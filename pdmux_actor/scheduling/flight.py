"""What is on the lanes, with which share, and how much of its time it had company."""

from collections.abc import Collection, Sequence

import msgspec

from pdmux_actor.scheduling.launch import NUM_LANES, ComputeLaunch, Lane, PrefillSlice, Repartition
from profiler.latency import ChunkShape


class LaneState(msgspec.Struct, frozen=True, gc=False):
    """`sms` is the share of the launch in flight and `ends_s` when it is expected to end; 0 when the lane is idle."""

    busy: bool
    sms: int
    ends_s: float = 0.0


_IDLE = LaneState(busy=False, sms=0)


class Flight(msgspec.Struct, kw_only=True, gc=False):
    """`modelled_s` is what the latency model says of the launch alone, `expected_s` what was
    learned to expect of it when it took off. `company_s` is how long the other lane was busy
    too; `beside` are the chunks of the prefill that was there, for a decode.
    """

    launch: ComputeLaunch
    sms: int
    modelled_s: float
    took_off_s: float
    expected_s: float = 0.0
    company_s: float = 0.0
    beside: Sequence[ChunkShape] = ()

    def meet(self, other: "Flight", until_s: float) -> None:
        """Both were in the air from the later take-off until `until_s`."""
        together_s = max(0.0, until_s - max(self.took_off_s, other.took_off_s))
        self.company_s += together_s
        other.company_s += together_s


class LanesInFlight:
    def __init__(self, total_sms: int) -> None:
        self._total_sms = total_sms
        self._lanes: dict[Lane, Flight] = {}
        self.partition = Repartition(prefill_sms=0, decode_sms=total_sms)

    def busy(self, lane: Lane) -> bool:
        return lane in self._lanes

    @property
    def all_busy(self) -> bool:
        return len(self._lanes) == NUM_LANES

    def uses(self, model: str) -> bool:
        return any(flight.launch.model == model for flight in self._lanes.values())

    def lane_state(self, lane: Lane) -> LaneState:
        flight = self._lanes.get(lane)
        if flight is None:
            return _IDLE
        return LaneState(busy=True, sms=flight.sms, ends_s=flight.took_off_s + flight.expected_s)

    def flights(self) -> Collection[Flight]:
        return self._lanes.values()

    def of(self, launch: ComputeLaunch) -> Flight:
        return self._lanes[launch.lane]

    def repartition(self, lane: Lane, sms: int) -> Repartition | None:
        """The partition that gives `lane` its share for the next launch; None when it is in force already.

        The other lane keeps what its launch in flight holds; an idle one is given the rest.
        """
        other = self._lanes.get(Lane.DECODE if lane is Lane.PREFILL else Lane.PREFILL)
        other_sms = self._total_sms - sms if other is None else other.sms
        assert 0 < sms <= self._total_sms - other_sms, "partition shares exceed the device"
        prefill_sms, decode_sms = (sms, other_sms) if lane is Lane.PREFILL else (other_sms, sms)
        if prefill_sms == self.partition.prefill_sms and decode_sms == self.partition.decode_sms:
            return None
        self.partition = Repartition(prefill_sms=prefill_sms, decode_sms=decode_sms)
        return self.partition

    def take_off(self, flight: Flight) -> None:
        lane = flight.launch.lane
        assert lane not in self._lanes, f"the {lane.value} lane is busy"
        for other in self._lanes.values():
            other.beside = other.beside or _chunks_of(flight.launch)
            flight.beside = _chunks_of(other.launch)
        self._lanes[lane] = flight

    def land(self, launch: ComputeLaunch, finished_s: float) -> Flight:
        flight = self._lanes.pop(launch.lane)
        assert flight.launch is launch, "completions come in the order of launches"
        for other in self._lanes.values():
            flight.meet(other, finished_s)
        return flight


def _chunks_of(launch: ComputeLaunch) -> Sequence[ChunkShape]:
    return [chunk.shape for chunk in launch.chunks] if isinstance(launch, PrefillSlice) else ()
