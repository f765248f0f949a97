"""Bounds how many sequences of a model decode at once: those that serve most requests within both their targets.

Every sequence that joins makes each decode step longer, for all that run. Past capacity, where prompts come faster than
answers end, the batch grows until every gap is late, and then no request is in time, however many first tokens are.
With B sequences a gap takes g(B), and by Little's law a demand of D tokens per second takes rho = D g(B) / B of what
they serve. The best B has the largest

    V(B) = min(1, U / rho) (c + (1 - c) F(g(B)))

which is the value of prefill_options.py with decode as what is short. Where a target bounds the batch, prompts wait for
an answer to end, unless one more costs those who run no more than it gains itself: one request in time. Where no batch
meets a target, F says nothing, and the batch that serves most tokens is best.
"""

from collections.abc import Iterator, Mapping, Sequence

from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import RunningTargets
from pdmux_actor.scheduling.policies.prefill_options import BEARABLE_UTILISATION, request_value
from pdmux_actor.scheduling.queues import ModelQueue

_MEMORY_WAYS = 32
_MEMORY_GAPS = 2048
_LATE_SHARE = 0.005
_LEAST_ROOM = 8  # a step of so many takes hardly longer than of one: where that is late, it is for another reason
# What is learned of steps is a factor by the octave of their batch. Beyond an eighth more than now a step is taken to
# be as much longer as its batch, which is never too short; the next decision knows better.
_TRUSTED_GROWTH = 8
_LEAST_IN_TIME = 0.1


class DecodeRoom:
    """Bounds a model from when its gaps are seen to come too late until none of its prompts waits.

    Predicted gaps are worst cases, and where prompts are short of time they are as long as targets admit, by choice:
    alone they are no reason to keep a prompt waiting.
    """

    def __init__(self) -> None:
        self._stretch = 1.0  # of gaps beside prompts, to decode alone on the whole device
        self._late_gaps: dict[str, LateGaps] = {}

    def note_gap(self, gap_s: float, alone_s: float) -> None:
        """A prompt could be taken so that running sequences have gaps of `gap_s`."""
        kept = 1 - 1 / _MEMORY_WAYS
        self._stretch = max(1.0, kept * self._stretch + (1 - kept) * gap_s / alone_s)

    def bounds(self, state: UnitState, before: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the sequences that each bounded model may have in, given those of the last decision."""
        decoding, bounds = state.decoding(), {}
        for model in self._late_gaps.keys() - state.queues.keys():
            del self._late_gaps[model]
        for queue in decoding:
            late = self._late_gaps.setdefault(queue.model, LateGaps())
            late.look(queue)
            if queue.waiting and (queue.model in before or late.share > _LATE_SHARE):
                most = min(queue.num_resident + len(queue.waiting), state.settings.max_running_sequences)
                bounds[queue.model] = max(_LEAST_ROOM, self._best(state, queue, decoding, most))
        return bounds

    def _best(self, state: UnitState, queue: ModelQueue, decoding: Sequence[ModelQueue], most: int) -> int:
        running, targets = len(queue.running), RunningTargets(decoding)
        own_s = _step_s(state, queue, queue.context_tokens)
        others_s = sum([_step_s(state, q, q.context_tokens) for q in decoding if q is not queue])

        gaps_s = {running: self._stretch * (others_s + own_s)}

        def gap_s(batch: int) -> float:
            known_s = gaps_s.get(batch)
            if known_s is None:
                step_s = _step_s(state, queue, _resized(queue.context_tokens, batch))
                known_s = gaps_s[batch] = self._stretch * (others_s + step_s)
            return known_s

        def met(batch: int) -> float:
            seconds = gap_s(batch)
            if batch > running + max(1, running // _TRUSTED_GROWTH):
                seconds = max(seconds, gap_s(running) * batch / running)
            return targets.share_met(seconds)

        if met(most) == 1.0:
            return most
        demand_per_s = running / gap_s(running) / max(_LEAST_IN_TIME, state.share_in_time)

        def value(batch: int) -> float:
            served = min(1.0, BEARABLE_UTILISATION * batch / (demand_per_s * gap_s(batch)))
            return request_value(served, met(batch))

        best = max(_batches(queue.num_resident, most), key=lambda batch: (value(batch), batch))
        following = min(most, queue.num_resident + 1)
        if running * (met(best) - met(following)) <= 1.0:  # it costs those who run no more than who waits
            return max(best, following)
        return best


class LateGaps:
    """The share of a model's last gaps that came too late."""

    def __init__(self) -> None:
        self.share = 0.0
        self._gaps = self._met = 0

    def look(self, queue: ModelQueue) -> None:
        counts = queue.counts
        gaps = counts.gaps - self._gaps
        if gaps > 0:
            kept = (1 - 1 / _MEMORY_GAPS) ** gaps
            self.share = kept * self.share + (1 - kept) * (1 - (counts.gaps_met - self._met) / gaps)
        self._gaps, self._met = counts.gaps, counts.gaps_met


def _step_s(state: UnitState, queue: ModelQueue, contexts: Sequence[int]) -> float:
    """On the whole device. More SMs are never slower: what was learned of a smaller share that is used counts, too."""
    known = state.predictor.known_decode_shares(queue.model, len(contexts))
    of = state.predictor.decode_outlook if contexts is queue.context_tokens else state.predictor.other_decode_outlook
    outlook = of(queue.model, queue.info.spec, contexts)
    return min([outlook.solo_s(share) for share in {state.total_sms, *known}])


def _batches(resident: int, most: int) -> Iterator[int]:
    """As many as are in, fewer, one more, and up to `most`."""
    eighths = range(1, 9)
    yield from {max(1, resident * part // 8) for part in eighths}
    yield from {min(most, resident + 1), *(resident + (most - resident) * part // 8 for part in eighths)}


def _resized(contexts: Sequence[int], batch: int) -> Sequence[int]:
    """Takes some of them, evenly, or adds what they are in the mean.

    >>> _resized([100, 200, 300], 2), _resized([100, 200, 300], 4)
    ([100, 200], [100, 200, 300, 200])
    """
    if batch > len(contexts):
        mean = sum(contexts) // len(contexts)
        return [*contexts, *[mean] * (batch - len(contexts))]
    return [contexts[place * len(contexts) // batch] for place in range(batch)]
