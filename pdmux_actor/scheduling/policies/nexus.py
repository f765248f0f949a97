"""Nexus (arXiv:2507.06608, §4): predicted latencies choose the partition before each launch.

While KV memory is ample, prefill is to be fast: decode has the least share on which its step takes at most `beta`
times what it takes on the whole device. Where memory runs short, what ends requests is to be fast: decode has the
largest share that leaves prefill at most `alpha` times as long as on the whole device. A partition gives way to another
one that differs by at least `delta` of the device (the paper's hysteresis). A phase without work leaves all SMs to the
other.

Assumed, where the published text was not at hand: alpha 1.3, beta 1.1, memory is short beyond 70 % of a model's quota,
delta 5 %. Not here: the paper orders prompts by length and age; these come in the order of their arrival. What the
lanes cost each other in bandwidth is not in the two comparisons, in which it would stand on both sides. The paper
serves one model; several take turns.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.launch import decode_shares, least_share
from pdmux_actor.scheduling.policies.base import Action, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.forecast import DecodeCycle, prefill_shapes, whole_prefill_s
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.whole_prefills import SplitLanes

_ALPHA = 1.3
_BETA = 1.1
_MEMORY_IS_SHORT = 0.7
_DELTA = 0.05


class Nexus:
    target_aware = False
    sees_batches_only = True

    def __init__(self) -> None:
        self._lanes = SplitLanes()
        self._undivided = PrefillFirst()
        self._share: int | None = None

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not decode_shares(state.device):
            return self._undivided.choose(state, now_s)
        prefilling, decodes = self._lanes.next_prefill(state), bool(state.decoding())
        if prefilling is None or not decodes:
            return self._lanes.act(state, state.total_sms if decodes else 0)
        wanted = wanted_decode_share(state, prefilling)
        if self._share is None or abs(wanted - self._share) >= _DELTA * state.total_sms:
            self._share = wanted
        return self._lanes.act(state, self._share)


POLICY = PolicyEntry(
    name="nexus",
    rule="a partition by predicted latencies: while KV memory is ample decode has the least share on which it is at "
    "most a tenth slower than alone, else prefill the least on which it is at most 30 % slower",
    source="Nexus §4",
    make=Nexus,
)


def wanted_decode_share(state: UnitState, prefilling: str) -> int:
    shares, total = decode_shares(state.device), state.total_sms
    if max(queue.share_of_quota_used for queue in state.decoding()) <= _MEMORY_IS_SHORT:
        decode_s = DecodeCycle(state, state.decoding(), in_turn=True).seconds
        return least_share(shares, decode_s, _BETA * decode_s(total)) or max(shares)
    shapes = prefill_shapes(state, prefilling)

    def prefill_s(decode_sms: int) -> float:
        return whole_prefill_s(state, prefilling, shapes, total - decode_sms, learned_on=total)

    return least_share(shares[::-1], prefill_s, _ALPHA * prefill_s(0)) or min(shares)
