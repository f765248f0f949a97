"""Predicts the work in front of a policy."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

from pdmux_actor.scheduling.decode_outlook import steps_s
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.decode_lanes import gain_of_lanes, least_divided_sms
from pdmux_actor.scheduling.prediction import PrefillOutlook
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Precedence, TokenSequence
from profiler.latency import ChunkShape

_NEXT_PROMPTS = 16


def head_sequence(queue: ModelQueue) -> TokenSequence:
    """The sequence whose prefill is next."""
    if queue.partial and not (queue.partial[0].gives_way and queue.waiting and not queue.waiting[0].gives_way):
        return queue.partial[0]
    return queue.waiting[0]


def prefill_shapes(state: UnitState, model: str) -> Sequence[ChunkShape]:
    """The batch under way if it is the model's, else the next sequence."""
    if state.batch is not None and state.batch.model == model:
        return state.batch.shapes
    queue = state.queues[model]
    return [queue.chunk_shape(head_sequence(queue))]


SecondsAndGain = tuple[Callable[[int], float], Callable[[int], float]]
"""What a decode cycle takes, by share, and the factor in that which is due to models that decode at once."""


class DecodeCycle:
    """One decode step of every model, in turn or several at once (decode_lanes.py): the gap that each of them sees; at
    worst, when `beside` a prefill.

    For one decision: what does not depend on the share is looked up once.
    """

    def __init__(
        self,
        state: UnitState,
        queues: Sequence[ModelQueue],
        *,
        beside: Sequence[ChunkShape] = (),
        in_turn: bool = False,
    ) -> None:
        """`in_turn`: of a policy that never has several decode at once."""
        self._beside = beside
        self._outlooks = state.decode_outlooks(queues)
        self._gain, self._divided_from_sms = 1.0, least_divided_sms(state.device)
        if len(queues) > 1 and state.settings.decode_lanes > 1 and not in_turn:
            models = tuple([q.model for q in queues])
            known = state.gains_of_lanes.get(models)
            if known is None:
                known = state.gains_of_lanes[models] = gain_of_lanes(state, self._outlooks)
            self._gain = known

    @property
    def seconds(self) -> Callable[[int], float]:
        """Returns the seconds by share: a policy asks a dozen times per decision."""
        return self._sum_of_worst_s if self._beside else self.alone_s

    @property
    def alone_s(self) -> Callable[[int], float]:
        """Returns the same without a prefill. Most units serve one model at a time."""
        return self._outlooks[0].solo_s if len(self._outlooks) == 1 else self._sum_s

    @property
    def seconds_and_gain(self) -> SecondsAndGain:
        return self.seconds, self._gain_on

    def alone_and_worst_s(self, shares: Iterable[int]) -> list[tuple[int, float, float]]:
        """Returns each share and its seconds, alone and at worst."""
        found = list[tuple[int, float, float]]()
        known = [(outlook.solo_s, outlook.slowdowns(self._beside).on) for outlook in self._outlooks]
        for share in shares:
            alone_s = worst_s = 0.0
            for solo_s, slowdown_on in known:
                step_s = solo_s(share)
                alone_s += step_s
                worst_s += step_s * slowdown_on(share)
            gain = self._gain_on(share)
            found.append((share, gain * alone_s, gain * worst_s))
        return found

    def _gain_on(self, sms: int) -> float:
        return self._gain if sms >= self._divided_from_sms else 1.0

    def _sum_s(self, sms: int) -> float:
        return self._gain_on(sms) * steps_s(self._outlooks, sms)

    def _sum_of_worst_s(self, sms: int) -> float:
        return self._gain_on(sms) * steps_s(self._outlooks, sms, self._beside)


def decode_cycle_s(
    state: UnitState, queues: Sequence[ModelQueue], sms: int, *, beside: Sequence[ChunkShape] = ()
) -> float:
    """Predicts the decode cycle of a share that is settled."""
    seconds = DecodeCycle(state, queues, beside=beside).seconds
    return seconds(sms)


def whole_prefill_s(
    state: UnitState, model: str, shapes: Sequence[ChunkShape], sms: int, *, learned_on: int | None = None
) -> float:
    """`learned_on` as in LatencyPredictor.prefill_s."""
    return prefill_outlook(state, model, shapes).seconds(sms, learned_on)


def prefill_outlook(state: UnitState, model: str, shapes: Sequence[ChunkShape]) -> PrefillOutlook:
    """Predicts a prefill on the shares of one decision."""
    spec = state.queues[model].info.spec
    return state.predictor.prefill_outlook(model, spec, shapes, beside_decode=bool(state.decoding()))


def prompt_s(state: UnitState, queue: ModelQueue, sequence: TokenSequence, sms: int) -> float:
    """Predicts the prefill of a waiting sequence by itself."""
    return prompt_outlook(state, queue, sequence).seconds(sms)


def prompt_outlook(state: UnitState, queue: ModelQueue, sequence: TokenSequence) -> PrefillOutlook:
    """Predicts the same on the shares of one decision."""
    return prefill_outlook(state, queue.model, (queue.chunk_shape(sequence),))


def next_prompts(state: UnitState, now_s: float) -> list[tuple[float, float]]:
    """Seconds of the whole device and due time of the prompts that are to be in time, as they come: the batch first."""
    prompts: list[tuple[float, float]] = []
    if state.batch is not None:
        prompts.append((batch_left_s(state, state.total_sms), state.batch.first_token_due_s))
    waiting = [
        (sequence.first_token_due_s, queue, sequence)
        for queue in state.queues.values()
        for sequence in islice(chain(queue.partial, queue.waiting), _NEXT_PROMPTS)
        if sequence.precedence is Precedence.IN_TIME
    ]
    waiting.sort(key=lambda entry: entry[0])
    for due_s, queue, sequence in waiting[:_NEXT_PROMPTS]:
        prompts.append((prompt_s(state, queue, sequence, state.total_sms), due_s))
    return [(work_s, due_s) for work_s, due_s in prompts if now_s + work_s <= due_s]


def batch_left_s(state: UnitState, sms: int) -> float:
    """Returns what remains of the prefill batch under way."""
    batch = state.batch
    if batch is None:
        return 0.0
    return whole_prefill_s(state, batch.model, batch.shapes, sms) * batch.layers_left / batch.num_layers


def tightest_tbt_s(queues: Sequence[ModelQueue]) -> float:
    return min([q.tightest_tbt_s for q in queues], default=float("inf"))


SAFE_SHARE, _HOPELESS_SHARE = 0.95, 1.25  # of a target
_MISSED_COUNTS = 0.1  # a sequence that has missed a target already, against one that has met all of its own
_MOST_TARGETS = 6  # distinct ones that are told apart: clients may set their own


class RunningTargets:
    """The targets of all running sequences of some models, weighted."""

    def __init__(self, decoding: Sequence[ModelQueue]) -> None:
        by_target: dict[float, float] = {}
        for queue in decoding:
            for target in queue.tbt_targets:
                weight = target.on_time + _MISSED_COUNTS * target.missed
                by_target[target.tbt_s] = by_target.get(target.tbt_s, 0.0) + weight
        self._weights = sorted(by_target.items())
        self._total = sum(by_target.values())

    def share_met(self, gap_s: float) -> float:
        """F: the share of sequences whose target admits gaps that are predicted to be of `gap_s`."""
        met = 0.0
        for tbt_s, weight in self._weights:
            met += weight * _chance(gap_s / tbt_s if tbt_s > 0 else _HOPELESS_SHARE)
        return met / self._total

    def weightiest(self) -> list[float]:
        """The targets that most sequences have, the tightest first."""
        if len(self._weights) <= _MOST_TARGETS:
            return [tbt_s for tbt_s, _ in self._weights]
        return sorted(tbt_s for tbt_s, _ in sorted(self._weights, key=lambda pair: -pair[1])[:_MOST_TARGETS])


def tightest_from(decoding: Sequence[ModelQueue], step_s: float) -> float:
    """The tightest target of running sequences that gaps of `step_s` meet, or else the one that they miss by least;
    infinite if there is none.
    """
    targets = {target.tbt_s for queue in decoding for target in queue.tbt_targets}
    return min((tbt_s for tbt_s in targets if tbt_s >= step_s), default=max(targets, default=float("inf")))


def _chance(share: float) -> float:
    """That a gap is within a target of which it is predicted to take this share.

    It falls from 1 at 95 % of the target to a half at the target, and to nothing at 125 %: worst cases are predicted,
    but one gap that is late after all makes all sequences late that wait for it.
    """
    if share <= SAFE_SHARE:
        return 1.0
    if share <= 1.0:
        return 1.0 - 0.5 * (share - SAFE_SHARE) / (1.0 - SAFE_SHARE)
    return max(0.0, 0.5 * (_HOPELESS_SHARE - share) / (_HOPELESS_SHARE - 1.0))
