"""Decides whether the decode steps of several models run one after the other or at once, each on a part of the decode
share.

One after the other a step of every model takes the sum of their times on the whole share. On k lanes, each with a k-th
of the share, k steps are under way at once: model i takes T_i on its part alone, and s_i times as long beside the
others, with which it shares the memory bandwidth (profiler/bandwidth_sharing.py). Lanes take the models in turn, so

    cycle(k) = max(sum_i s_i T_i / k, max_i s_i T_i)

and the number of lanes with the shortest cycle is chosen. Decode is bound by bandwidth: what several lanes win is the
time in which a step does not read, because it starts kernels, waits for the host or has few sequences.

From one step to the next a sequence has a token more, and that is all: a choice is kept until a sequence comes, goes or
is late, or what is predicted of it has moved by a fiftieth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pdmux_actor.scheduling.decode_outlook import DecodeOutlook
from pdmux_actor.scheduling.policies.base import Decode, RoundRobin, UnitState
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TbtTarget
from profiler.bandwidth_sharing import slowdown_beside
from profiler.specs import DeviceSpec

_WORTH_IT = 0.95  # of the cycle: predictions are of the mean, and a step on a part is a longer gap for one model alone
_MOVED = 0.02  # what is predicted of a choice, for it to be made anew
_LEAST_PART = 0.7  # of a part: a lane that waits for its neighbour loses more


@dataclass(frozen=True, slots=True)
class Division:
    """`lanes` parts of `sms` each. In `cycle_s` every model has a step."""

    lanes: int
    sms: int
    cycle_s: float


def divide(device: DeviceSpec, outlooks: Sequence[DecodeOutlook], share_sms: int, max_lanes: int) -> Division:
    """Divides the decode share for one step of every model in turn. On equal terms fewer lanes."""
    best = Division(1, share_sms, sum([outlook.solo_s(share_sms) for outlook in outlooks]))
    for lanes in range(2, min(max_lanes, len(outlooks)) + 1):
        part_sms = part_of(device, share_sms, lanes)
        if part_sms is None:
            break
        cycle_s = _cycle_s(device, outlooks, part_sms, lanes)
        if cycle_s < _WORTH_IT * best.cycle_s:
            best = Division(lanes, part_sms, cycle_s)
    return best


def part_of(device: DeviceSpec, share_sms: int, lanes: int) -> int | None:
    """SMs of each of so many equal parts, in steps of the device's granularity; None when they would have none."""
    step = device.partition_granularity_sms
    return share_sms // lanes // step * step or None


def least_divided_sms(device: DeviceSpec) -> int:
    """Returns the least share of which two steps at once can have a part each."""
    return 2 * device.partition_granularity_sms


def gain_of_lanes(state: UnitState, outlooks: Sequence[DecodeOutlook]) -> float:
    """The decode cycle of these models as a share of the sum of their steps. Of half the device, or the least that can
    be divided, for every share from there on: a policy asks for a dozen of them per decision, and what overlaps does
    not depend much on it.
    """
    if state.settings.decode_lanes == 1 or len(outlooks) == 1:
        return 1.0
    share_sms = max(least_divided_sms(state.device), state.total_sms // 2)
    if share_sms > state.total_sms:
        return 1.0
    one_by_one_s = sum([outlook.solo_s(share_sms) for outlook in outlooks])
    if one_by_one_s <= 0:
        return 1.0
    return divide(state.device, outlooks, share_sms, state.settings.decode_lanes).cycle_s / one_by_one_s


def may_add_decode(state: UnitState) -> bool:
    """Returns whether one more decode may be launched, beside others if need be."""
    if not state.decode_lane.busy:
        return True
    return state.num_decodes < state.settings.decode_lanes and bool(state.idle_decoding())


class DecodeBatches(msgspec.Struct, gc=False):
    """Tells whether the same sequences of the same models decode, none of them late that was not: a queue makes its
    targets anew then.
    """

    targets: Sequence[Sequence[TbtTarget]]

    @classmethod
    def of(cls, decoding: Sequence[ModelQueue]) -> "DecodeBatches":
        return cls([queue.tbt_targets for queue in decoding])

    def are_of(self, decoding: Sequence[ModelQueue]) -> bool:
        targets = self.targets
        if len(targets) != len(decoding):
            return False
        return not [None for place, queue in enumerate(decoding) if targets[place] is not queue.tbt_targets]


def is_near(now_s: float, then_s: float) -> bool:
    """Says whether a choice of which `then_s` was predicted stands."""
    return abs(now_s - then_s) <= _MOVED * then_s


class KeptDivision:
    """Divides the decode share for steps of several models, anew when it has to be."""

    def __init__(self) -> None:
        self._division: Division | None = None
        self._batches = DecodeBatches(())
        self._share_sms = 0
        self._steps_s = 0.0  # the sum of their steps, on parts of the share

    def of(self, state: UnitState, decoding: Sequence[ModelQueue], share_sms: int) -> Division:
        kept = self._division
        if (
            kept is not None
            and share_sms == self._share_sms
            and self._batches.are_of(decoding)
            and is_near(_steps_at_once_s(state.decode_outlooks(decoding), kept), self._steps_s)
        ):
            return kept
        outlooks = state.decode_outlooks(decoding)
        kept = self._division = divide(state.device, outlooks, share_sms, state.settings.decode_lanes)
        self._share_sms, self._batches = share_sms, DecodeBatches.of(decoding)
        self._steps_s = _steps_at_once_s(outlooks, kept)
        return kept


def _steps_at_once_s(outlooks: Sequence[DecodeOutlook], division: Division) -> float:
    """Predicts one step of every model on a part of its own, without the sharing of the bandwidth."""
    total_s, sms = 0.0, division.sms
    for outlook in outlooks:
        step_s = outlook.solo_s(sms)
        total_s += step_s if division.lanes == 1 else step_s * outlook.beside_decodes_factor(sms)
    return total_s


def decodes_at_once(
    state: UnitState, decoding: Sequence[ModelQueue], share_sms: int, turn: RoundRobin, *, steps: int = 1
) -> list[Decode]:
    """Returns as many decodes as make the cycle shortest, on parts of `share_sms`; those that there are not yet.

    Others may be in flight on parts of another share. What of them is beyond this one comes to its end.
    """
    outlooks = state.decode_outlooks(decoding)
    division = divide(state.device, outlooks, share_sms, state.settings.decode_lanes)
    return fill_lanes(state, turn, division, share_sms=share_sms, steps=steps)


def _cycle_s(device: DeviceSpec, outlooks: Sequence[DecodeOutlook], part_sms: int, lanes: int) -> float:
    beside = [outlook.beside_decodes(device, part_sms) for outlook in outlooks]
    drawn, others_per_lane = sum([demand for demand, _ in beside]), (lanes - 1) / (len(outlooks) - 1)
    steps_s = [step_s * slowdown_beside(demand, (drawn - demand) * others_per_lane) for demand, step_s in beside]
    return max(sum(steps_s) / lanes, max(steps_s))


def fill_lanes(
    state: UnitState, turn: RoundRobin, division: Division, *, share_sms: int, steps: int = 1
) -> list[Decode]:
    """Decodes for the lanes that are free: of models that have none in flight, in turn, within the first `share_sms`.

    The gaps that launches in flight leave may be of another division: a part is as large as fits, and none while what
    is free is far less than one.
    """
    free, part_sms = division.lanes - state.num_decodes, division.sms
    candidates = [queue.model for queue in state.idle_decoding()]
    step, actions = state.device.partition_granularity_sms, list[Decode]()
    for start, end in state.decode_gaps():
        width = min(end, share_sms) - start
        parts = min(free, len(candidates), max(width // part_sms, int(width >= _LEAST_PART * part_sms)))
        for _ in range(parts):
            model = turn.take(candidates)
            assert model is not None
            candidates.remove(model)
            actions.append(Decode(model, min(part_sms, width // step * step or width), steps))
        free -= parts
    return actions
