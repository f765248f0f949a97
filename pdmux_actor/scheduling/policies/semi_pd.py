"""Semi-PD (arXiv:2504.19867, §4): each phase has SMs of its own, and measured latencies move the border.

At the end of a window TTFT and TPOT of the requests are compared with their targets. If one phase misses its target and
the other does not, SMs go to the one that does: as many as it needs by the paper's model, in which both latencies are
in inverse proportion to the share,

    TTFT = c / x,    TPOT = d / y,    x + y = all SMs,

and no more than the other phase can give without missing its own. If both or none miss theirs, nothing moves. A share
is not lent while its phase idles, since the paper's limits of MPS are of processes.

Assumed, where the published text leaves it open or was not at hand: a window is a second, a phase is judged by the mean
of latency over target (requests may have targets of their own), a prompt that still waits beyond its target counts with
its age, and the first split is `static_decode_share`. The paper adds a queueing term to TTFT that is left out here. It
serves one model; several take turns within each share.
"""

from collections.abc import Iterator, Sequence

from pdmux_actor.messages import LEAST_TARGET_S
from pdmux_actor.scheduling.launch import decode_shares, fixed_decode_share
from pdmux_actor.scheduling.policies.base import Action, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.whole_prefills import SplitLanes
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.specs import DeviceSpec

_WINDOW_S = 1.0


class SemiPd:
    target_aware = False

    def __init__(self) -> None:
        self._lanes = SplitLanes()
        self._undivided = PrefillFirst()
        self._share: int | None = None
        self._window_start_s: float | None = None
        self._counted: dict[str, tuple[int, float]] = {}  # first tokens by model and their TTFTs, at its start

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        share = self._share or fixed_decode_share(state.device, state.settings.static_decode_share)
        if share is None:
            return self._undivided.choose(state, now_s)
        if self._window_start_s is None:
            self._window_start_s = now_s
        if now_s - self._window_start_s >= _WINDOW_S:
            share = moved_share(state.device, share, ttft=self._ttft(state, now_s), tpot=_tpot(state))
            self._window_start_s = now_s
        self._share = share
        return self._lanes.act(state, share)

    def _ttft(self, state: UnitState, now_s: float) -> float:
        """Mean of TTFT over target, of first tokens since this was asked last and of prompts that are late."""
        counts = {model: queue.counts for model, queue in state.queues.items()}
        before, self._counted = self._counted, {m: (c.first_tokens, c.ttfts_of_target) for m, c in counts.items()}
        overdue = [ratio for queue in state.queues.values() for ratio in _overdue(queue, now_s)]
        number, ratios = len(overdue), sum(overdue)
        for model, (first_tokens, of_target) in self._counted.items():
            known, known_ratios = before.get(model, (0, 0.0))
            if known > first_tokens:  # the model has left and come back
                known, known_ratios = 0, 0.0
            number, ratios = number + first_tokens - known, ratios + of_target - known_ratios
        return ratios / number if number else 0.0


POLICY = PolicyEntry(
    name="semi_pd",
    rule="a partition that measured latencies move: the phase that misses its target takes what it needs, as far as "
    "the other keeps its own",
    source="Semi-PD §4",
    make=SemiPd,
)


def moved_share(device: DeviceSpec, decode_sms: int, *, ttft: float, tpot: float) -> int:
    """The decode share for the next window. `ttft` and `tpot` are means of latency over target."""
    if (ttft > 1) == (tpot > 1):
        return decode_sms
    prefill_sms, shares = device.num_sms - decode_sms, decode_shares(device)
    if ttft > 1:
        least = max(decode_sms * tpot, device.num_sms - prefill_sms * ttft)
        return min(decode_sms, next((sms for sms in shares if sms >= least), decode_sms))
    most = min(decode_sms * tpot, device.num_sms - prefill_sms * ttft)
    return max(decode_sms, max((sms for sms in shares if sms <= most), default=decode_sms))


def _overdue(queue: ModelQueue, now_s: float) -> Iterator[float]:
    for sequence in queue.waiting:  # targets differ, and what was preempted comes first: any of them may be late
        if now_s > sequence.first_token_due_s and not sequence.gives_way:
            yield (now_s - sequence.arrival_s) / max(sequence.request.slo.ttft_s, LEAST_TARGET_S)


def _tpot(state: UnitState) -> float:
    """Mean of TPOT over target, of running sequences."""
    ratios = [ratio for queue in state.queues.values() for ratio in _tpots(queue)]
    return sum(ratios) / len(ratios) if ratios else 0.0


def _tpots(queue: ModelQueue) -> Iterator[float]:
    for sequence in queue.running:
        first_s, last_s = sequence.first_token_s, sequence.last_token_s
        gaps = sequence.num_output_tokens - len(sequence.request.output_token_ids) - 1
        if first_s is not None and last_s is not None and gaps > 0 and not sequence.gives_way:
            yield (last_s - first_s) / gaps / max(sequence.request.slo.tbt_s, LEAST_TARGET_S)
