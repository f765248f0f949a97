"""Decode steps that the executor is given before the one in flight has ended, so that the lane does not wait for the
host in between.

One is handed out at most, of the same sequences on the same SMs, while nothing but tokens is left to be learned of the
launch in flight: nobody is sure to end with it, nobody's sampling needs the host, no prompt waits for the lane or is
about to join, and the policy has chosen the same SMs twice: what it takes for the first step of a batch that it has not
seen, it may give up at the second, to prompts that come. To the scheduler it takes off when the other one lands; until
then it is on no lane. Who ends with the other one (at a token of its own, by an abort) has been answered, and what the
step brings it is dropped; it holds its KV until then.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.batching import grow_together
from pdmux_actor.scheduling.dispatcher import Dispatcher
from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, set_in_flight
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence
from pdmux_actor.scheduling.unit_parts import UnitParts

_MOST_IN_A_ROW = 16  # then the policy chooses anew how decode goes on


class EarlySteps:
    def __init__(self, parts: UnitParts, dispatcher: Dispatcher) -> None:
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._dispatcher = dispatcher
        self._handed_out: DecodeStep | None = None
        self._sms = 0
        self._last: DecodeStep | None = None  # that took off
        self._chosen: DecodeStep | None = None  # by the policy, last
        self._chosen_sms = 0
        self._is_settled = False
        self._num_in_a_row = 0
        self._plain: tuple[TokenSequence, ...] = ()  # the last ones that were found to be

    @property
    def is_handed_out(self) -> bool:
        """Returns whether a step waits behind the one in flight."""
        return self._handed_out is not None

    def offer(self) -> Sequence[DecodeStep]:
        """Returns a step to be handed out behind the one in flight, if one may be."""
        if self._handed_out is not None:
            return ()
        flights = [flight for flight in self._lanes.flights() if not flight.is_prefill]
        if len(flights) != 1:
            return ()
        launch, sms = flights[0].launch, flights[0].sms
        if not isinstance(launch, DecodeStep) or launch.part is not None or sms != self._lanes.partition.decode_sms:
            return ()
        if launch is not self._last:
            self._num_in_a_row = 0
            self._note_choice(launch, sms)
        if not self._is_settled:
            return ()
        queue = self._queues[launch.model]
        if self._num_in_a_row >= _MOST_IN_A_ROW or self._prompts_wait() or not self._goes_on(queue, launch):
            return ()
        if not grow_together(queue, launch.steps + 1):
            return ()
        step = DecodeStep(model=launch.model, sequences=launch.sequences, steps=1, ahead=launch.steps)
        for sequence in step.sequences:
            sequence.in_next_flight = True
        self._handed_out, self._sms = step, sms
        return (step,)

    def follow(self, landed: ComputeLaunch, finished_s: float) -> DecodeStep | None:
        """`landed` has been applied: what was handed out behind it takes off, and is returned."""
        step = self._handed_out
        if step is None or not isinstance(landed, DecodeStep) or landed.sequences is not step.sequences:
            return None
        for sequence in step.sequences:
            sequence.in_next_flight = False
        set_in_flight(step.sequences, True)
        self._dispatcher.take_off_early(step, self._sms, finished_s)
        self._handed_out, self._last = None, step
        self._num_in_a_row += 1
        return step

    def _note_choice(self, launch: DecodeStep, sms: int) -> None:
        if launch is not self._chosen:
            self._is_settled = sms == self._chosen_sms
            self._chosen, self._chosen_sms = launch, sms

    def _prompts_wait(self) -> bool:
        """Beside a prefill those that wait are not kept from the lane, but who joins soon would be."""
        batch = self._batches.current
        if batch is not None:
            return batch.on_last_slice
        return any(queue.waiting or queue.partial for queue in self._queues.values())

    def _goes_on(self, queue: ModelQueue, launch: DecodeStep) -> bool:
        running, steps = launch.sequences, launch.steps
        if queue.removing or len(running) != len(queue.running) or running != tuple(queue.running):
            return False
        if any(other.running for other in self._queues.values() if other is not queue):
            return False
        if running is not self._plain:
            if not all(_is_plain(sequence) for sequence in running):
                return False
            self._plain = running
        if max(queue.context_tokens) + steps >= queue.max_len:
            return False
        return not any(s.pending_finish is not None or len(s.token_ids) + steps >= s.most_tokens for s in running)


def _is_plain(sequence: TokenSequence) -> bool:
    """Whatever tokens come, the device samples the next one by itself."""
    sampling = sequence.request.sampling
    if not sequence.is_plain or sequence.is_stepwise or sequence.adapter is not None:
        return False
    return sampling.processing is None and sequence.num_output_tokens >= sampling.min_tokens
