"""Applies the result of a launch that has ended to its sequences."""

from collections.abc import Mapping, Sequence, Set

from pdmux_actor.messages import FinishReason, SampledToken, TokenEvent
from pdmux_actor.scheduling.answers import Answers, FirstTokens
from pdmux_actor.scheduling.batching import PrefillBatches
from pdmux_actor.scheduling.launch import (
    Chunk,
    DecodeStep,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    sampling_sequences,
    set_in_flight,
)
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence
from pdmux_actor.scheduling.uniform_steps import UniformSteps


class LaunchResults:
    """Sampled tokens are appended and told, sequences move on, and what is done or has failed ends."""

    def __init__(
        self,
        queues: Mapping[str, ModelQueue],
        batches: PrefillBatches,
        answers: Answers,
        first_tokens: FirstTokens,
    ) -> None:
        self._queues = queues
        self._batches = batches
        self._answers = answers
        self._first_tokens = first_tokens
        self._uniform_steps = UniformSteps()

    def apply(self, done: LaunchCompletion) -> None:
        launch = done.launch
        queue = self._queues[launch.model]
        if done.sequence_errors:
            sampling = sampling_sequences(launch, queue.info.spec.num_layers)
            for place in done.sequence_errors:
                sampling[place].kv_is_sound = False
        if isinstance(launch, PrefillSlice):
            self._complete_slice(queue, launch, done)
        else:
            self._complete_step(queue, launch, done)

    def _complete_slice(self, queue: ModelQueue, launch: PrefillSlice, done: LaunchCompletion) -> None:
        batch = self._batches.current
        assert batch is not None
        assert batch.batch_id == launch.batch_id
        batch.in_flight = False
        batch.next_layer = launch.last_layer
        if done.error is not None:
            self._answers.fail([chunk.sequence for chunk in batch.chunks], done.error)
        elif batch.layers_left == 0:
            self._batches.end(queue, batch)
            _note_prompts(launch.chunks, done)
            self._advance(queue, launch.chunks)
            self._apply_tokens(queue, sampling_sequences(launch, batch.num_layers), done)
        self._answers.drop_if_deserted(batch)

    def _complete_step(self, queue: ModelQueue, launch: DecodeStep | MixedStep, done: LaunchCompletion) -> None:
        chunks = launch.chunks if isinstance(launch, MixedStep) else ()
        if done.error is not None:
            involved = [*[chunk.sequence for chunk in chunks], *launch.sequences]
            set_in_flight(involved, False)
            for sequence in [s for s in involved if s.pending_finish is not None]:
                self._answers.release(sequence)
            self._answers.fail(involved, done.error)
            return
        if not chunks and (told := self._uniform_steps.apply(queue, launch.sequences, done)) is not None:
            self._answers.tell(told)
            return
        for chunk in chunks:
            chunk.sequence.in_flight = False
            queue.partial.remove(chunk.sequence)
        if chunks:
            _note_prompts(chunks, done)
            self._advance(queue, chunks)
        self._apply_tokens(queue, sampling_sequences(launch, queue.info.spec.num_layers), done)

    def _advance(self, queue: ModelQueue, chunks: Sequence[Chunk]) -> None:
        """The chunks' tokens have KV now: complete prompts run, the others are next in line for their next chunk."""
        for chunk in reversed(chunks):
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.start + chunk.length
            if sequence.pending_finish is not None:
                self._answers.release(sequence)
            elif chunk.samples:
                queue.cache_computed(sequence)
                sequence.status = SequenceStatus.RUNNING
                queue.insert_running(sequence)
            else:
                queue.partial.appendleft(sequence)

    def _apply_tokens(self, queue: ModelQueue, sequences: Sequence[TokenSequence], done: LaunchCompletion) -> None:
        """Nearly all tokens are more of a sequence that goes on: what such tokens do is written out here."""
        now_s, max_len, eos, has_errors = done.finished_s, queue.max_len, queue.info.eos_token_ids, done.sequence_errors
        told, late, went_on = list[TokenEvent](), list[TokenSequence](), list[TokenSequence]()
        num_each = len(done.tokens[0]) if done.tokens else 0
        for place, (sequence, sampled) in enumerate(zip(sequences, done.tokens, strict=True)):
            sequence.in_flight = False
            token_ids, last_s = sequence.token_ids, sequence.last_token_s
            known = len(token_ids) + num_each
            if (
                last_s is None
                or known >= sequence.most_tokens
                or known >= max_len
                or len(sampled) != num_each
                or _may_stop(sampled, eos, sequence.stop_token_ids)
                or sequence.pending_finish is not None
                or has_errors
            ):
                self._answers.tell(told)
                told.clear()
                self._apply(queue, sequence, sampled, place, done)
                continue
            if num_each == 1:
                token_ids.append(sampled[0][0])
            else:
                token_ids += [token[0] for token in sampled]
            sequence.num_computed_tokens = known - 1
            sequence.last_token_s = now_s
            if now_s - last_s > sequence.tbt_s:
                late.append(sequence)
            went_on.append(sequence)
            told.append(TokenEvent(request_id=sequence.request.request_id, tokens=sampled))
        self._answers.tell(told)
        if went_on:
            queue.note_gaps(went_on, late, num_each)

    def _apply(
        self,
        queue: ModelQueue,
        sequence: TokenSequence,
        sampled: tuple[SampledToken, ...],
        place: int,
        done: LaunchCompletion,
    ) -> None:
        if sequence.pending_finish is not None:  # answered while the launch was in flight
            if sequence.status is not SequenceStatus.FINISHED:
                self._answers.release(sequence)
            return
        if place in done.sequence_errors:
            return self._answers.end(sequence, FinishReason.ERROR, done.sequence_errors[place])
        tokens, finish = append_tokens(sequence, sampled, queue.info.eos_token_ids, queue.max_len)
        queue.note_longer()
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        is_outgrown = finish is None and not queue.takes(sequence)
        if sequence.first_token_s is None:
            if finish is None and not is_outgrown and self._first_tokens.hold(sequence, tokens, done.finished_s):
                return
            self._answers.hand_over(self._first_tokens.take(sequence.request.request_id), done.finished_s)
        queue.note_tokens(sequence, len(tokens), done.finished_s)
        self._answers.say(sequence, tokens, finish)
        if finish is not None:
            self._answers.release(sequence)
        elif is_outgrown:  # its quota was lowered after it came: it is given back, with what it has
            self._answers.refuse(queue, sequence)


def _may_stop(sampled: tuple[SampledToken, ...], eos: Set[int], stops: tuple[int, ...]) -> bool:
    if not eos and not stops:
        return False
    return bool([token for token in sampled if token[0] in eos or token[0] in stops])


def _note_prompts(chunks: Sequence[Chunk], done: LaunchCompletion) -> None:
    """What is computed again after a preemption replaces what was known."""
    for place, logprobs in done.prompt_logprobs.items():
        known = chunks[place].sequence.prompt_logprobs
        assert known is not None, "nobody asked for them"
        known[chunks[place].start :] = logprobs
    for place, embedding in done.embeddings.items():
        chunks[place].sequence.embedding = embedding


def append_tokens(
    sequence: TokenSequence, sampled: tuple[SampledToken, ...], eos_token_ids: frozenset[int], max_len: int
) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
    """Appends sampled tokens up to the first that ends the sequence; what a look-ahead sampled beyond it is dropped.

    Returns the tokens appended, and why the sequence ended, if it did. `max_len` is in tokens, prompt included; where
    more was promised to the sequence, it does not end there.
    """
    params, token_ids = sequence.request.sampling, sequence.token_ids
    before, longest = len(token_ids), min(sequence.most_tokens, max(max_len, sequence.promised_tokens))
    for token in sampled:
        token_id = token.token_id
        token_ids.append(token_id)
        may_stop = (token_id in eos_token_ids and not params.ignore_eos) or token_id in params.stop_token_ids
        if may_stop and sequence.num_output_tokens > params.min_tokens:
            return sampled[: len(token_ids) - before], FinishReason.STOP
        if len(token_ids) >= longest:
            return sampled[: len(token_ids) - before], FinishReason.LENGTH
    return sampled, None
