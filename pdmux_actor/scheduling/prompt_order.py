"""Puts the prompts that wait in a unit into serving order: those that can be in time first, by due time."""

from collections.abc import Mapping

from pdmux_actor.scheduling.answers import longest_hold_s
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import batch_left_s, decode_cycle_s, prompt_outlook, prompt_s
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import Precedence, SequenceStatus, TokenSequence
from pdmux_actor.scheduling.serving_order import Candidate, ServingOrder, serving_order

_MOST_CANDIDATES = 64  # of those due next; what is behind them is looked at when its time comes
_LATE_SHARE = 0.05  # of the time, for prompts that are late anyway: none waits for ever
_MEMORY_PROMPTS = 32
_LEAST_STARTED = 4
_LEAST_ATTAINMENT = 0.1


class PromptOrder:
    """Keeps `waiting` of every queue in the order of `Precedence`, and those in time by due time.

    A model's prompts weigh one over the share of its last first tokens that were in time. That is proportional
    fairness: the sum of the logarithms of the models' attainments grows by so much with each of them.
    """

    def __init__(self) -> None:
        self._attainment: dict[str, float] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # first tokens in all and in time, when last looked
        self._late_credit_s = 0.0
        self._late_seen_s: float | None = None  # when late prompts waited at the last look
        self._places = PlaceWaits()
        self.share_in_time = 1.0  # of the unit's last prompts, every model counted alike

    def arrange(self, state: UnitState, now_s: float, *, prefill_sms: int) -> bool:
        """Returns whether there was anything to do: several prompts, and one of those that wait may start.

        `prefill_sms` are what the prefill lane is expected to have.
        """
        self._places.look(state, now_s)
        prompts = sum([len(queue.waiting) for queue in state.queues.values()]) + (state.batch is not None)
        if prompts < 2 or state.prefill_lane.busy or not state.prefillable_models():
            return False
        self._count_first_tokens(state.queues)
        candidates: list[Candidate] = []
        considered: list[tuple[ModelQueue, TokenSequence]] = []
        step_s = decode_cycle_s(state, state.decoding(), state.total_sms - prefill_sms or state.total_sms)
        place_s = self._places.seconds
        for queue, sequence in _next_due(state, now_s):
            outlook = prompt_outlook(state, queue, sequence)
            if now_s + outlook.seconds(state.total_sms) > sequence.first_token_due_s:
                self._give_up(queue, sequence)
                continue
            weight = 1 / max(_LEAST_ATTAINMENT, self._attainment.get(queue.model, 1.0))
            due_s = sequence.first_token_due_s - longest_hold_s(sequence.request.slo, step_s)
            candidates.append(Candidate(due_s, outlook.seconds(prefill_sms) + place_s, weight))
            considered.append((queue, sequence))
        order = self._order(state, candidates, now_s, prefill_sms)
        for precedence, indices in ((Precedence.IN_TIME, order.in_time), (Precedence.LATE, order.late)):
            for index in indices:
                queue, sequence = considered[index]
                queue.set_precedence(sequence, precedence)
        self._serve_late(state, now_s, prefill_sms)
        return True

    def _order(self, state: UnitState, candidates: list[Candidate], now_s: float, prefill_sms: int) -> ServingOrder:
        """Behind the batch under way, or before it if that is better."""
        if state.batch is None:
            return serving_order(candidates, free_s=now_s)
        end_s = now_s + batch_left_s(state, prefill_sms)
        behind, before = serving_order(candidates, free_s=end_s), serving_order(candidates, free_s=now_s)
        in_time = len(state.batch.chunks) if end_s <= state.batch.first_token_due_s else 0
        state.batch.is_put_back = len(behind.in_time) + in_time < len(before.in_time)
        return before if state.batch.is_put_back else behind

    def _serve_late(self, state: UnitState, now_s: float, prefill_sms: int) -> None:
        """The prompt that has been late for longest goes first when its share of the time has made up for its work; a
        batch that was preempted and is late is not preempted again when that has made up for the rest of it.

        No prompt while a batch is under way: it would only preempt it, and cannot be preempted itself then.
        """
        late = [(queue, oldest) for queue in state.queues.values() if (oldest := _oldest_late(queue)) is not None]
        held = state.suspended or state.batch
        is_held_up = held is not None and held.was_preempted and not held.gives_way and held.is_late(now_s)
        if not late and not is_held_up:
            self._late_credit_s, self._late_seen_s = 0.0, None
            return
        if self._late_seen_s is not None:  # time without late prompts earns nothing
            self._late_credit_s += _LATE_SHARE * (now_s - self._late_seen_s)
        self._late_seen_s = now_s
        if state.batch is not None:
            if is_held_up and held is state.batch and not held.is_kept:
                held.is_kept = self._pay(batch_left_s(state, prefill_sms))
            return
        queue, sequence = min(late, key=lambda pair: pair[1].arrival_s)
        if not self._pay(prompt_s(state, queue, sequence, prefill_sms)):
            return
        if sequence.status is SequenceStatus.WAITING:
            queue.set_precedence(sequence, Precedence.FIRST)
        else:
            sequence.precedence = Precedence.FIRST

    def _pay(self, work_s: float) -> bool:
        """Returns whether late prompts have had less of the time than their share by that much, which they get now."""
        is_due = self._late_credit_s >= work_s
        if is_due:
            self._late_credit_s -= work_s
        return is_due

    def _give_up(self, queue: ModelQueue, sequence: TokenSequence) -> None:
        """Its first token cannot be in time any more."""
        if not sequence.is_late:
            sequence.is_late = True
            self._note(queue.model, in_time=0, of=1)
        queue.set_precedence(sequence, Precedence.LATE)

    def _count_first_tokens(self, queues: Mapping[str, ModelQueue]) -> None:
        for model, queue in queues.items():
            before, in_time_before = self._counted.get(model, (0, 0))
            if queue.counts.first_tokens < before:  # the model has left and come back
                before, in_time_before = 0, 0
            if queue.counts.first_tokens != before:
                in_time = queue.counts.first_tokens_met - in_time_before
                self._note(model, in_time=in_time, of=queue.counts.first_tokens - before)
            self._counted[model] = (queue.counts.first_tokens, queue.counts.first_tokens_met)
        if len(self._attainment) > len(queues):
            self._attainment = {model: share for model, share in self._attainment.items() if model in queues}
            self._note_share()

    def _note(self, model: str, *, in_time: int, of: int) -> None:
        kept = (1 - 1 / _MEMORY_PROMPTS) ** of
        self._attainment[model] = kept * self._attainment.get(model, 1.0) + (1 - kept) * in_time / of
        self._note_share()

    def _note_share(self) -> None:
        known = self._attainment.values()
        self.share_in_time = sum(known) / len(known) if known else 1.0


class PlaceWaits:
    """Measures how long the prefill lane stands idle for each prompt, since all places of the models are taken: so much
    does a prompt take of the unit's time beyond its own work.
    """

    def __init__(self) -> None:
        self._idle_s, self._started = 0.0, 0.0
        self._seen_s = 0.0  # the last look
        self._is_idle = False  # since then
        self._first_tokens = 0

    @property
    def seconds(self) -> float:
        """Returns what it is for each of the last few dozen prompts."""
        return self._idle_s / max(_LEAST_STARTED, self._started)

    def look(self, state: UnitState, now_s: float) -> None:
        if self._is_idle:
            self._idle_s += now_s - self._seen_s
        first_tokens = sum([queue.counts.first_tokens for queue in state.queues.values()])
        self._started += max(0, first_tokens - self._first_tokens)
        if self._started > _MEMORY_PROMPTS:
            self._idle_s, self._started = self._idle_s / 2, self._started / 2
        waits = any(queue.waiting for queue in state.queues.values())
        is_lane_idle = state.batch is None and not state.prefill_lane.busy
        self._is_idle = waits and is_lane_idle and not state.prefillable_models()
        self._seen_s, self._first_tokens = now_s, first_tokens


def _oldest_late(queue: ModelQueue) -> TokenSequence | None:
    """A prompt that was begun late is between its chunks, and those behind it wait for it."""
    if queue.partial and queue.partial[0].precedence is Precedence.LATE:
        return queue.partial[0]
    return queue.oldest_late()


def _next_due(state: UnitState, now_s: float) -> list[tuple[ModelQueue, TokenSequence]]:
    """Waiting prompts that have not been given up, the next due first."""
    waiting = [
        (queue, sequence)
        for queue in state.queues.values()
        for sequence in queue.waiting
        if sequence.precedence is not Precedence.FIRST and not sequence.is_late and not sequence.gives_way
    ]
    waiting.sort(key=lambda pair: pair[1].first_token_due_s)
    return waiting[:_MOST_CANDIDATES]
