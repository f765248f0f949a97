"""Measures how well the lanes were used, from the decision log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdmux_actor.scheduling.decision import LANE_OF, Decision
from pdmux_actor.scheduling.launch import Lane


@dataclass(frozen=True, slots=True)
class LaneShare:
    """Shares of a window's time. `busy`: a launch ran. `bubble`: the lane idled before a launch although it had work
    and the other lane left it SMs. The rest: there was nothing to do, or no SM to do it on. Decode lanes are taken
    together; `further` is what ran there beside another decode, 1 for a second one all the time.
    """

    busy: float
    bubble: float
    further: float = 0.0

    @property
    def bubble_ratio(self) -> float:
        """Bubbles as a share of the time in which the lane could have been busy."""
        able = self.busy + self.bubble
        return self.bubble / able if able else 0.0

    @property
    def mean_launches(self) -> float:
        """Returns the mean number of launches at once, while any ran; 0 when none did."""
        return 1 + self.further / self.busy if self.busy else 0.0


def lane_shares(decisions: Iterable[Decision], start_s: float, end_s: float) -> Mapping[Lane, LaneShare]:
    """Computes the lanes' shares of the window from `start_s` to `end_s`, in any order of decisions. Launches in flight
    count as busy to its end.

    The decode lane works for 3 s, idles for 1 s with sequences to decode, works for 2 s, and has nothing to do then:

    >>> def decode(index, **times):
    ...     return Decision(index=index, now_s=0.0, kind="decode", prefill_sms=0, decode_sms=4, **times)
    >>> shares = lane_shares(
    ...     [decode(0, started_s=0.0, finished_s=3.0), decode(1, ready_s=3.0, started_s=4.0, finished_s=6.0)], 0.0, 10.0
    ... )
    >>> shares[Lane.DECODE], round(shares[Lane.DECODE].bubble_ratio, 3)
    (LaneShare(busy=0.5, bubble=0.1, further=0.0), 0.167)
    >>> shares[Lane.PREFILL].bubble_ratio
    0.0
    """
    window_s = end_s - start_s
    if window_s <= 0:
        return dict.fromkeys(Lane, LaneShare(0.0, 0.0))
    busy_s, bubble_s = dict.fromkeys(Lane, 0.0), dict.fromkeys(Lane, 0.0)
    lanes = LANE_OF
    decoding: list[tuple[float, float]] = []
    for decision in decisions:
        lane = lanes.get(decision.kind)
        if lane is None:
            continue
        started_s, finished_s, ready_s = decision.started_s, decision.finished_s, decision.ready_s
        began_s = decision.now_s if started_s is None else started_s
        ended_s = end_s if finished_s is None or finished_s > end_s else finished_s
        first_s = began_s if began_s > start_s else start_s
        if ended_s > first_s:
            busy_s[lane] += ended_s - first_s
            if lane is Lane.DECODE:
                decoding.append((first_s, ended_s))
        if ready_s is not None:
            idled_s = (began_s if began_s < end_s else end_s) - (ready_s if ready_s > start_s else start_s)
            if idled_s > 0:
                bubble_s[lane] += idled_s
    further_s = _overlap_s(decoding)
    return {
        Lane.PREFILL: LaneShare(busy_s[Lane.PREFILL] / window_s, bubble_s[Lane.PREFILL] / window_s),
        Lane.DECODE: LaneShare(
            (busy_s[Lane.DECODE] - further_s) / window_s, bubble_s[Lane.DECODE] / window_s, further_s / window_s
        ),
    }


def _overlap_s(spans: list[tuple[float, float]]) -> float:
    """How much longer the spans are in sum than together.

    >>> _overlap_s([(2.0, 5.0), (0.0, 3.0), (4.0, 4.5)])
    1.5
    """
    overlap_s, until_s = 0.0, float("-inf")
    for began_s, ended_s in sorted(spans):
        overlap_s += max(0.0, min(until_s, ended_s) - began_s)
        until_s = max(until_s, ended_s)
    return overlap_s


def logged_window(decisions: Iterable[Decision]) -> tuple[float, float]:
    """Returns the time from the first start to the last end of what is logged; (0, 0) when nothing has ended yet."""
    spans = [(d.started_s, d.finished_s) for d in decisions if d.started_s is not None and d.finished_s is not None]
    return (min(s for s, _ in spans), max(f for _, f in spans)) if spans else (0.0, 0.0)
