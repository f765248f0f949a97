"""Tracks what is on the lanes, with which share, and how much of its time it had company."""

from collections.abc import Callable, Sequence

import msgspec

from pdmux_actor.scheduling.launch import (
    FIRST_DECODE_LANE,
    ComputeLaunch,
    DecodePart,
    Lane,
    PrefillSlice,
    Repartition,
    lane_number,
)
from profiler.contention import GuardCell
from profiler.latency import ChunkShape


class LaneState(msgspec.Struct, frozen=True, gc=False):
    """`sms` is the share of the launch in flight and `ends_s` when it is expected to end; 0 when the lane is idle."""

    busy: bool
    sms: int
    ends_s: float = 0.0


IDLE_LANE = LaneState(busy=False, sms=0)


class LaunchInFlight(msgspec.Struct, kw_only=True, gc=False):
    """`modelled_s` is what the latency model says of the launch alone, `expected_s` what was learned to expect of it
    when it took off. `contexts` are the lengths of a decode's sequences then, where the queue knew them.

    `company_s` is how long another launch was in the air too, and for a decode `decode_company_s` the same of another
    decode; `beside` are the chunks of the prefill that was there. `demand` is the share of the device's memory
    bandwidth that the decode alone draws, `beside_demand` the most that decodes beside it drew in sum; both are 0 where
    models decode one after the other.
    """

    launch: ComputeLaunch
    sms: int
    modelled_s: float
    took_off_s: float
    contexts: Sequence[int] | None = None
    first_sm: int = 0
    expected_s: float = 0.0
    draws: Callable[[], float] | None = None  # says `demand`: hardly any launch is asked for it
    company_s: float = 0.0
    decode_company_s: float = 0.0
    beside: Sequence[ChunkShape] = ()
    beside_demand: float = 0.0
    _company_since_s: float | None = None
    _decodes_since_s: float | None = None
    _demand: float | None = None
    _cell: GuardCell | None = None
    _cell_beside: Sequence[ChunkShape] = ()  # that it is of

    @property
    def demand(self) -> float:
        if self._demand is None:
            self._demand = 0.0 if self.draws is None else self.draws()
        return self._demand

    @property
    def lengths(self) -> Sequence[int]:
        """Returns the contexts of the decoding sequences, as of when it took off."""
        if self.contexts is None and not isinstance(self.launch, PrefillSlice):
            self.contexts = [len(s.token_ids) for s in self.launch.sequences]
        return self.contexts or ()

    @property
    def guard_cell(self) -> GuardCell:
        """Returns the contention guard's, of a decode beside these chunks."""
        cell = self._cell
        if cell is None or self._cell_beside is not self.beside:
            self._cell_beside = self.beside
            cell = self._cell = GuardCell.of(self.sms, self.beside, self.lengths)
        return cell

    @property
    def end_sm(self) -> int:
        return self.first_sm + self.sms

    @property
    def is_prefill(self) -> bool:
        return isinstance(self.launch, PrefillSlice)

    def note_company(self, now_s: float, *, others: int, decodes: int) -> None:
        """Notes how many other launches run from now on, and for a decode how many of them are decodes."""
        if self._company_since_s is not None:
            self.company_s += max(0.0, now_s - self._company_since_s)
        self._company_since_s = now_s if others else None
        if self._decodes_since_s is not None:
            self.decode_company_s += max(0.0, now_s - self._decodes_since_s)
        self._decodes_since_s = now_s if decodes else None


class LanesInFlight:
    """Decode lanes have the first SMs of the device, prefill the last. Nearly always there is one decode at a time."""

    def __init__(self, total_sms: int) -> None:
        self.total_sms = total_sms
        self._prefill: LaunchInFlight | None = None
        self._decodes: dict[int, LaunchInFlight] = {}  # by lane number
        self.partition = Repartition(prefill_sms=0, decode_sms=total_sms)

    @property
    def both_busy(self) -> bool:
        """Prefill and at least one decode lane."""
        return self._prefill is not None and bool(self._decodes)

    @property
    def num_decodes(self) -> int:
        return len(self._decodes)

    def uses(self, model: str) -> bool:
        prefill = self._prefill
        return (prefill is not None and prefill.launch.model == model) or self.decodes(model)

    def decodes(self, model: str) -> bool:
        return model in [flight.launch.model for flight in self._decodes.values()]

    def lane_state(self, lane: Lane) -> LaneState:
        """Returns the state of the decode lanes together: the SMs that they reach to, and when the last of them
        ends.
        """
        if lane is Lane.PREFILL:
            return IDLE_LANE if self._prefill is None else _state(self._prefill, self._prefill.sms)
        if not self._decodes:
            return IDLE_LANE
        states = [_state(flight, flight.end_sm) for flight in self._decodes.values()]
        if len(states) == 1:
            return states[0]
        return LaneState(busy=True, sms=self._end_sm(), ends_s=max([state.ends_s for state in states]))

    def sms_left(self, lane: Lane) -> int:
        """Returns what the launches on `lane` leave the other one."""
        if lane is Lane.DECODE:
            return self.total_sms - sum([flight.sms for flight in self._decodes.values()])
        return self.total_sms - (0 if self._prefill is None else self._prefill.sms)

    def decode_gaps(self) -> list[tuple[int, int]]:
        """SMs that further decode lanes could have, `[start, end)`, ascending: the free ones below prefill's."""
        gaps, start = list[tuple[int, int]](), 0
        for first_sm, end_sm in sorted([(flight.first_sm, flight.end_sm) for flight in self._decodes.values()]):
            if first_sm > start:
                gaps.append((start, first_sm))
            start = end_sm
        end = self.total_sms if self._prefill is None else self._prefill.first_sm
        if end > start:
            gaps.append((start, end))
        return gaps

    def flights(self) -> list[LaunchInFlight]:
        """Returns what is in the air, a prefill first."""
        decodes = self._decodes.values()
        return [*decodes] if self._prefill is None else [self._prefill, *decodes]

    def of(self, launch: ComputeLaunch) -> LaunchInFlight:
        flight = self._prefill if isinstance(launch, PrefillSlice) else self._decodes[lane_number(launch)]
        assert flight is not None
        return flight

    def place_prefill(self, sms: int) -> Repartition | None:
        """The partition that gives prefill its share for the next launch; None when it is in force already.

        Decode lanes keep what their launches in flight hold; idle ones are given the rest.
        """
        decode_sms = self._end_sm() if self._decodes else self.total_sms - sms
        assert sms > 0, "partition shares exceed the device"
        return self._repartition(sms, decode_sms)

    def place_decode(self, sms: int, *, ahead_sms: int = 0) -> tuple[DecodePart | None, Repartition | None]:
        """The next decode's part, None for the whole share, and the partition as for prefill.

        A decode alone has the first SMs; another one the first gap that is wide enough. `ahead_sms` are those of
        decodes that follow at once.
        """
        available_sms = self.total_sms - (0 if self._prefill is None else self._prefill.sms)
        first_sm = self._first_gap(sms) if self._decodes else 0
        assert 0 < sms <= available_sms - first_sm, "partition shares exceed the device"
        decode_sms = min(available_sms, first_sm + sms + ahead_sms)
        if self._decodes:
            decode_sms = max(decode_sms, self._end_sm())
        part = None
        if sms != decode_sms:
            index = next(i for i in range(len(self._decodes) + 1) if FIRST_DECODE_LANE + i not in self._decodes)
            part = DecodePart(index, first_sm, sms)
        prefill_sms = self.total_sms - decode_sms if self._prefill is None else self._prefill.sms
        return part, self._repartition(prefill_sms, decode_sms)

    def take_off(self, flight: LaunchInFlight) -> None:
        if flight.is_prefill:
            assert self._prefill is None, "the prefill lane is busy"
            for decode in self._decodes.values():
                assert flight.first_sm >= decode.end_sm, "launches would share SMs"
                decode.beside = decode.beside or _chunks_of(flight.launch)
            self._prefill = flight
            if self._decodes:
                self._note_company(flight.took_off_s)
            return
        number = lane_number(flight.launch)
        assert number not in self._decodes, "the decode lane is busy"
        if self._prefill is not None:
            assert self._prefill.first_sm >= flight.end_sm, "launches would share SMs"
            flight.beside = _chunks_of(self._prefill.launch)
        if self._decodes:
            self._join(flight)
        self._decodes[number] = flight
        if self._prefill is not None or len(self._decodes) > 1:
            self._note_company(flight.took_off_s)

    def land(self, launch: ComputeLaunch, finished_s: float) -> LaunchInFlight:
        landed = self.of(launch)
        assert landed.launch is launch, "completions come in the order of launches"
        if landed is self._prefill:
            self._prefill = None
        else:
            del self._decodes[lane_number(launch)]
        if self._decodes or self._prefill is not None:
            landed.note_company(finished_s, others=0, decodes=0)
            self._note_company(finished_s)
        return landed

    def _note_company(self, at_s: float) -> None:
        decodes, prefill = len(self._decodes), self._prefill
        if prefill is not None:
            prefill.note_company(at_s, others=decodes, decodes=0)
        for decode in self._decodes.values():
            decode.note_company(at_s, others=decodes - (prefill is None), decodes=decodes - 1)

    def _join(self, flight: LaunchInFlight) -> None:
        """Beside other decodes."""
        others = self._decodes.values()
        for other in others:
            assert other.launch.model != flight.launch.model, "a model has one decode in flight"
            assert flight.first_sm >= other.end_sm or other.first_sm >= flight.end_sm, "launches would share SMs"
        drawn = sum([other.demand for other in others])
        flight.beside_demand = drawn
        for other in others:
            other.beside_demand = max(other.beside_demand, drawn - other.demand + flight.demand)

    def _end_sm(self) -> int:
        return max([flight.end_sm for flight in self._decodes.values()])

    def _first_gap(self, sms: int) -> int:
        return next((start for start, end in self.decode_gaps() if end - start >= sms), self.total_sms)

    def _repartition(self, prefill_sms: int, decode_sms: int) -> Repartition | None:
        partition = self.partition
        if prefill_sms == partition.prefill_sms and decode_sms == partition.decode_sms:
            return None
        assert prefill_sms + decode_sms <= self.total_sms, "partition shares exceed the device"
        self.partition = Repartition(prefill_sms=prefill_sms, decode_sms=decode_sms)
        return self.partition


def _state(flight: LaunchInFlight, sms: int) -> LaneState:
    return LaneState(True, sms, flight.took_off_s + flight.expected_s)


def _chunks_of(launch: ComputeLaunch) -> Sequence[ChunkShape]:
    return [chunk.shape for chunk in launch.chunks] if isinstance(launch, PrefillSlice) else ()
