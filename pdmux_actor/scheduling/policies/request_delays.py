"""Works out how a prompt and the running sequences share the device so that requests are delayed least in all.

MuxWise (§3.4.1) gives decode the least share that meets the TBT target. Prefill is fastest then, and decode crawls for
as long as a prompt is in: batches and KV grow up to what the target admits, although prompts may have time. On a share
s of S SMs a prompt takes T_P(S - s) of the prefill lane, and every sequence loses

    L(s) = T_P(S - s) (1 - T_D(S) / T_D(s))

of its decoding beside it, however it is sliced (T_D is a step of every model). The n prompts that wait for the lane,
this one among them, are delayed by T_P, and so is who comes before the lane is idle again: at utilisation rho of the
lane that makes n / (1 - rho). With B sequences running the delay in all, in seconds of requests, is

    n T_P(S - s) / (1 - rho(s)) + B L(s),    rho(s) = load T_P(S - s) / T_P(S)

The load is what the last prompts brought, in seconds of the whole device per second: a gateway shows a unit only the
first few of those that wait. At rho near 1 the prompts decide, and decode falls back to MuxWise's share. A fused step
is one more way to take a prompt, with T_P = T_mixed and L = T_mixed - T_D.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pdmux_actor.scheduling.launch import decode_shares
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import DecodeCycle, decode_cycle_s, head_sequence
from pdmux_actor.scheduling.policies.fusing import FusedStep
from pdmux_actor.scheduling.queues import ModelQueue

_MEMORY_BATCHES = 32
_MEMORY_STEPS = 64
_LEAST_IDLE = 0.01  # share of the lane: a load is measured, and 1 - rho may come out as nothing or less


class LaneLoad(msgspec.Struct, frozen=True, gc=False):
    """`prefill` is the utilisation of a lane that has the whole device; `decode_per_s` times the pace of decode that of
    the places for sequences.
    """

    prefill: float
    decode_per_s: float


class DecodeLoad:
    """Says how much of a unit's places sequences take, for each second that a token takes them.

    By Little's law as many sequences are in as come per second times the tokens of each times the pace. The places are
    those of `max_running_sequences` and of the model's blocks.
    """

    def __init__(self) -> None:
        self._pace_s = 0.0

    def note_step(self, cycle_s: float) -> None:
        kept = 1 - 1 / _MEMORY_STEPS if self._pace_s else 0.0
        self._pace_s = kept * self._pace_s + (1 - kept) * cycle_s

    def taken(self, state: UnitState) -> float:
        """The share of places that are taken, of the model that has fewest left."""
        queues, most = state.queues.values(), state.settings.max_running_sequences
        return max([max(q.num_resident / q.places(most), q.share_of_quota_used) for q in queues], default=0.0)

    def per_s(self, taken: float) -> float:
        return taken / self._pace_s if self._pace_s else 0.0


class PrefillLoad:
    """Seconds of prefill, each on the whole device, that came per second: over the last few dozen batches.

    Measured by when there was nothing to prefill: behind a gateway that holds prompts back, a lane that never runs
    empty has all the load that it can bear, however little of it is there to be seen.
    """

    def __init__(self) -> None:
        self._recent = _Span()
        self._batch: _Span | None = None  # since the last start; its time is not known yet
        self._started_s = 0.0
        self._empty_since_s: float | None = None

    @property
    def share(self) -> float:
        recent = self._recent
        if recent.taken_s <= 0 or recent.all_s <= 0:
            return 0.0
        return recent.whole_device_s / recent.taken_s * (1 - recent.empty_s / recent.all_s)

    def note_empty(self, now_s: float) -> None:
        """No prompt is under way or waits, but for memory: that decode must free."""
        if self._empty_since_s is None:
            self._empty_since_s = now_s

    def note_start(self, *, whole_device_s: float, taken_s: float, now_s: float) -> None:
        """A batch starts, which will take `taken_s` on its share."""
        if self._batch is not None:
            self._batch.all_s = now_s - self._started_s
            self._batch.empty_s = 0.0 if self._empty_since_s is None else now_s - self._empty_since_s
            self._recent.add(self._batch)
        self._batch = _Span(whole_device_s=whole_device_s, taken_s=taken_s)
        self._started_s, self._empty_since_s = now_s, None


@dataclass(slots=True, kw_only=True)
class _Span:
    whole_device_s: float = 0.0
    taken_s: float = 0.0
    all_s: float = 0.0
    empty_s: float = 0.0

    def add(self, newest: "_Span") -> None:
        kept = 1 - 1 / _MEMORY_BATCHES
        self.whole_device_s = kept * self.whole_device_s + newest.whole_device_s
        self.taken_s = kept * self.taken_s + newest.taken_s
        self.all_s = kept * self.all_s + newest.all_s
        self.empty_s = kept * self.empty_s + newest.empty_s


class Delays:
    """Holds what the ways to prefill the model's next batch cost all requests of the unit."""

    def __init__(
        self,
        state: UnitState,
        model: str,
        decoding: Sequence[ModelQueue],
        load: float,
        *,
        cycle: DecodeCycle,
        prompt_s: Callable[[int, int], float],
    ) -> None:
        """`cycle` is of `decoding`, beside the batch; `prompt_s` predicts the batch, by SMs and those whose learned
        factor applies.
        """
        self._state = state
        self._predicted_s = prompt_s
        self._cycle_s = cycle.alone_s
        self._alone_s = self._cycle_s(state.total_sms)
        self._own_s = decode_cycle_s(state, [queue for queue in decoding if queue.model == model], state.total_sms)
        # The same for every share: the guard knows some of them better than others, which is no reason to choose them.
        least = min(decode_shares(state.device), default=state.total_sms)
        seconds = cycle.seconds
        self._contention = seconds(least) / self._cycle_s(least)
        self._running = sum([len(queue.running) for queue in decoding])
        in_batch = 0 if state.batch is None else len(state.batch.chunks)
        self._waiting = in_batch + sum([_waiting(state, queue) for queue in state.queues.values()])
        self._learned_on = state.total_sms - least or state.total_sms
        self._load_per_s = load / self._prompt_s(state.total_sms)

    def beside_s(self, share: int) -> float:
        """Decode has `share` SMs, the prompt the others."""
        prompt_s = self._prompt_s(self._state.total_sms - share)
        step_s = self._contention * self._cycle_s(share)
        return self._in_all_s(prompt_s, prompt_s * (1 - self._alone_s / max(self._alone_s, step_s)))

    def fused_s(self, step: FusedStep) -> float:
        """Predicts the fused steps, by prompt that the step completes."""
        return self._in_all_s(step.step_s / step.prompts, max(0.0, step.step_s - self._own_s) / step.prompts)

    def _in_all_s(self, prompt_s: float, lost_s: float) -> float:
        """The prompt takes `prompt_s`, and every running sequence loses `lost_s`."""
        idle = max(_LEAST_IDLE, 1 - self._load_per_s * prompt_s)
        return self._waiting * prompt_s / idle + self._running * lost_s

    def _prompt_s(self, sms: int) -> float:
        return self._predicted_s(sms, self._learned_on)


def _waiting(state: UnitState, queue: ModelQueue) -> int:
    """Prompts that could start now if the lane were free. Those that wait for memory wait for decode to free it."""
    if not state.prefillable(queue):
        return 0
    fitting = queue.num_that_fit(len(head_sequence(queue).token_ids))
    places = queue.places(state.settings.max_running_sequences) - queue.num_resident
    return max(1, len(queue.partial) + min(len(queue.waiting), fitting, places))
