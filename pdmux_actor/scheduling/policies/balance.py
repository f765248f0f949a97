"""How a prompt and the running sequences share the device so that requests are delayed least in all.

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

from collections.abc import Sequence
from dataclasses import dataclass

from pdmux_actor.scheduling.partition import decode_shares
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import DecodeCycle, head_sequence, prefill_shapes, whole_prefill_s
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.latency import ChunkShape

_CHOICES = 8  # the delay is flat around its minimum
_MEMORY_BATCHES = 32
_LEAST_IDLE = 0.01  # share of the lane: a load is measured, and 1 - rho may come out as nothing or less


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
    """What the ways to prefill `prompt`, the model's next batch, cost all requests of the unit."""

    def __init__(
        self,
        state: UnitState,
        model: str,
        prompt: Sequence[ChunkShape],
        decoding: Sequence[ModelQueue],
        least: int,
        load: float,
    ) -> None:
        self._state, self._model, self._prompt = state, model, prompt
        cycle = DecodeCycle(state, decoding)
        self._cycle_s = cycle.seconds
        self._alone_s = self._cycle_s(state.total_sms)
        # The same for every share: the guard knows some of them better than others, which is no reason to choose them.
        self._contention = DecodeCycle(state, decoding, beside=prompt).seconds(least) / self._cycle_s(least)
        self._running = sum([len(queue.running) for queue in decoding])
        in_batch = 0 if state.batch is None else len(state.batch.chunks)
        self._waiting = in_batch + sum([_waiting(state, queue) for queue in state.queues.values()])
        self._least = least
        self._load_per_s = load / self._prompt_s(state.total_sms)

    def beside_s(self, share: int) -> float:
        """Decode has `share` SMs, the prompt the others."""
        prompt_s = self._prompt_s(self._state.total_sms - share)
        step_s = self._contention * self._cycle_s(share)
        return self.in_all_s(prompt_s, prompt_s * (1 - self._alone_s / max(self._alone_s, step_s)))

    def in_all_s(self, prompt_s: float, lost_s: float) -> float:
        """The prompt takes `prompt_s`, and every running sequence loses `lost_s`."""
        idle = max(_LEAST_IDLE, 1 - self._load_per_s * prompt_s)
        return self._waiting * prompt_s / idle + self._running * lost_s

    def _prompt_s(self, sms: int) -> float:
        learned_on = self._state.total_sms - self._least
        return whole_prefill_s(self._state, self._model, self._prompt, sms, learned_on=learned_on)


def balanced_share(
    state: UnitState, prefilling: str, decoding: Sequence[ModelQueue], least: int, load: float, now_s: float
) -> int:
    """`least` is the least share that meets the target; others only where the next prompt comes in time."""
    shares = choices(state, least)
    if len(shares) == 1:
        return least
    delays = Delays(state, prefilling, prefill_shapes(state, prefilling), decoding, least, load)
    best = min(shares, key=delays.beside_s)
    slower = [share for share in reversed(shares) if least < share <= best]
    return next((share for share in slower if _in_time(state, prefilling, share, now_s)), least)


def choices(state: UnitState, least: int) -> Sequence[int]:
    """`least`, and a few larger decode shares across the device."""
    shares = decode_shares(state.device)
    step = max(1, -(-len(shares) // _CHOICES))
    return (least, *[share for share in shares[step - 1 :: step] if share > least])


def _waiting(state: UnitState, queue: ModelQueue) -> int:
    """Prompts that could start now if the lane were free. Those that wait for memory wait for decode to free it."""
    if not state.prefillable(queue):
        return 0
    fitting = queue.num_that_fit(len(head_sequence(queue).token_ids))
    places = state.settings.max_running_sequences - queue.num_resident
    return max(1, len(queue.partial) + min(len(queue.waiting), fitting, places))


def _in_time(state: UnitState, prefilling: str, share: int, now_s: float) -> bool:
    """A prompt that is late already has no more to lose."""
    batch = state.batch
    prompt_s = whole_prefill_s(state, prefilling, prefill_shapes(state, prefilling), state.total_sms - share)
    if batch is None:
        due_s = head_sequence(state.queues[prefilling]).first_token_due_s
    else:
        prompt_s *= batch.layers_left / batch.num_layers
        due_s = min([chunk.sequence.first_token_due_s for chunk in batch.chunks])
    return now_s + prompt_s <= due_s or due_s <= now_s
