"""How well the lanes were used, from the decision log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdmux_actor.scheduling.decision_log import LANE_OF, Decision
from pdmux_actor.scheduling.launch import Lane


@dataclass(frozen=True, slots=True)
class LaneShare:
    """Shares of a window's time. `busy`: a launch ran. `bubble`: the lane idled before a launch although it had work
    and the other lane left it SMs. The rest: there was nothing to do, or no SM to do it on.
    """

    busy: float
    bubble: float

    @property
    def bubble_ratio(self) -> float:
        """Bubbles as a share of the time in which the lane could have been busy."""
        able = self.busy + self.bubble
        return self.bubble / able if able else 0.0


def lane_shares(decisions: Iterable[Decision], start_s: float, end_s: float) -> Mapping[Lane, LaneShare]:
    """Of the window from `start_s` to `end_s`, in any order of decisions. Launches in flight count as busy to its end.

    The decode lane works for 3 s, idles for 1 s with sequences to decode, works for 2 s, and has nothing to do then:

    >>> def decode(index, **times):
    ...     return Decision(index=index, now_s=0.0, kind="decode", prefill_sms=0, decode_sms=4, **times)
    >>> shares = lane_shares(
    ...     [decode(0, started_s=0.0, finished_s=3.0), decode(1, ready_s=3.0, started_s=4.0, finished_s=6.0)], 0.0, 10.0
    ... )
    >>> shares[Lane.DECODE], round(shares[Lane.DECODE].bubble_ratio, 3)
    (LaneShare(busy=0.5, bubble=0.1), 0.167)
    >>> shares[Lane.PREFILL].bubble_ratio
    0.0
    """
    window_s = end_s - start_s
    if window_s <= 0:
        return dict.fromkeys(Lane, LaneShare(0.0, 0.0))
    busy_s, bubble_s = dict.fromkeys(Lane, 0.0), dict.fromkeys(Lane, 0.0)
    lanes = LANE_OF
    for decision in decisions:
        lane = lanes.get(decision.kind)
        if lane is None:
            continue
        started_s, finished_s, ready_s = decision.started_s, decision.finished_s, decision.ready_s
        began_s = decision.now_s if started_s is None else started_s
        ended_s = end_s if finished_s is None or finished_s > end_s else finished_s
        lasted_s = ended_s - (began_s if began_s > start_s else start_s)
        if lasted_s > 0:
            busy_s[lane] += lasted_s
        if ready_s is not None:
            idled_s = (began_s if began_s < end_s else end_s) - (ready_s if ready_s > start_s else start_s)
            if idled_s > 0:
                bubble_s[lane] += idled_s
    return {lane: LaneShare(busy_s[lane] / window_s, bubble_s[lane] / window_s) for lane in Lane}


def logged_window(decisions: Iterable[Decision]) -> tuple[float, float]:
    """From the first start to the last end of what is logged; (0, 0) when nothing has ended yet."""
    spans = [(d.started_s, d.finished_s) for d in decisions if d.started_s is not None and d.finished_s is not None]
    return (min(s for s, _ in spans), max(f for _, f in spans)) if spans else (0.0, 0.0)
