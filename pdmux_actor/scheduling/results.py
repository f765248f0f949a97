"""Applies the result of a launch that has ended to its sequences."""

from collections.abc import Sequence, Set

import msgspec
import numpy as np
import numpy.typing as npt

from pdmux_actor.messages import FinishReason, SampledToken, TokenEvent
from pdmux_actor.scheduling.answers import Answers, FirstTokens
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
from pdmux_actor.scheduling.unit_parts import UnitParts

_NOBODY: Sequence[TokenSequence] = ()


class LaunchResults:
    """Sampled tokens are appended and told, sequences move on, and what is done or has failed ends."""

    def __init__(self, parts: UnitParts, answers: Answers, first_tokens: FirstTokens) -> None:
        self._queues = parts.queues
        self._batches = parts.batches
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
            ban = ban_of_all(sequence, queue.info.spec.vocab_size, queue.info.eos_token_ids)
            if ban is not None:  # that no logit is left is the request's fault
                param, error = ban
                return self._answers.end(sequence, FinishReason.ERROR, error, param)
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


class _Bounds(msgspec.Struct, gc=False):
    """Holds what bears on all sequences whose lengths are `contexts`, that very list: whoever changes the batch or its
    tokens makes another one. The first of them to end has `tokens_left`, the longest `longest` tokens; `last_s` is when
    the one that waits longest had its last token. `may_go_on`: none stops at tokens of its own, or waits for its first.
    """

    contexts: Sequence[int]
    may_go_on: bool
    tokens_left: int
    longest: int
    tbt_s: float
    last_s: float

    @classmethod
    def of(cls, queue: ModelQueue) -> "_Bounds":
        running, contexts = queue.running, queue.context_tokens
        told_s = [s.last_token_s for s in running if s.last_token_s is not None]
        return cls(
            contexts,
            len(told_s) == len(running) and not any(s.stop_token_ids for s in running),
            min([s.most_tokens - n for s, n in zip(running, contexts, strict=True)]),
            max(contexts),
            min([s.tbt_s for s in running]),
            min(told_s, default=0.0),
        )

    def note(self, contexts: Sequence[int], steps: int, now_s: float) -> None:
        self.contexts = contexts
        self.tokens_left -= steps
        self.longest += steps
        self.last_s = now_s


class UniformSteps:
    """Applies a step that gives every running sequence of a model as many tokens, and after which all of them go on.

    Nearly all steps are such. What has to be known for it of the batch as a whole (when the first sequence may end,
    which target is the tightest) is kept from step to step, so that a sequence costs what its tokens do and no more.
    """

    def __init__(self) -> None:
        self._bounds: dict[str, _Bounds] = {}  # by model, also of such that have left: they hold no sequence

    def apply(
        self, queue: ModelQueue, sequences: tuple[TokenSequence, ...], done: LaunchCompletion
    ) -> list[TokenEvent] | None:
        """Returns what to tell. None, and nothing is done, of another step, or one that might be another."""
        tokens, steps = done.tokens, len(done.tokens[0]) if done.tokens else 0
        if not steps or done.sequence_errors or sequences != tuple(queue.running):
            return None
        contexts, now_s, eos = queue.context_tokens, done.finished_s, queue.info.eos_token_ids
        bounds = self._bounds.get(queue.model)
        if bounds is None or bounds.contexts is not contexts:
            bounds = self._bounds[queue.model] = _Bounds.of(queue)
        if not bounds.may_go_on or steps >= bounds.tokens_left or bounds.longest + steps >= queue.max_len:
            return None
        if set(map(len, tokens)) != {steps} or [s for s in sequences if s.pending_finish is not None]:
            return None
        if steps > 1 and eos and any(token[0] in eos for sampled in tokens for token in sampled):
            return None
        late = _NOBODY
        if now_s - bounds.last_s > bounds.tbt_s:
            late = [s for s in sequences if s.last_token_s is not None and now_s - s.last_token_s > s.tbt_s]
        if steps == 1:
            drawn = [sampled[0][0] for sampled in tokens]
            if eos and not eos.isdisjoint(drawn):
                return None
            for sequence, token_id, context in zip(sequences, drawn, contexts, strict=True):
                sequence.in_flight = False
                sequence.token_ids.append(token_id)
                sequence.num_computed_tokens = context
                sequence.last_token_s = now_s
        else:
            for sequence, sampled, context in zip(sequences, tokens, contexts, strict=True):
                sequence.in_flight = False
                sequence.token_ids += [token[0] for token in sampled]
                sequence.num_computed_tokens = context + steps - 1
                sequence.last_token_s = now_s
        ids, longer = queue.running_ids, [n + steps for n in contexts]
        queue.note_gaps(sequences, late, steps)
        queue.note_contexts(longer, now_s)
        bounds.note(longer, steps, now_s)
        return [TokenEvent(request_id=name, tokens=sampled) for name, sampled in zip(ids, tokens, strict=True)]


_WORD_BITS = 32


def ban_of_all(sequence: TokenSequence, vocab_size: int, eos_token_ids: Set[int]) -> tuple[str, str] | None:
    """Returns the parameter that bans all that may follow, and what is wrong with it; None: none does."""
    sampling = sequence.request.sampling
    banned = set() if sampling.processing is None else set(sampling.processing.banned_after(sequence.token_ids))
    allowed = _allowed(sequence, vocab_size)
    place = f"at output token {sequence.num_output_tokens + 1}"
    if banned and sequence.constraint is not None and bool(np.isin(allowed, list(banned)).all()):
        return "bad_words", f"{place} it bans every token that the form allows"
    param = "bad_words" if banned else "min_tokens"
    if sequence.num_output_tokens < sampling.min_tokens:
        banned |= {*eos_token_ids, *sampling.stop_token_ids}
    if banned and bool(np.isin(allowed, list(banned)).all()):
        return param, f"{place} it leaves no token that may follow"
    return None


def _allowed(sequence: TokenSequence, vocab_size: int) -> npt.NDArray[np.int64]:
    """All tokens, or those that the form allows."""
    if sequence.constraint is None:
        return np.arange(vocab_size)
    words = np.zeros(-(-vocab_size // _WORD_BITS), dtype=np.int32)
    sequence.constraint.fill_mask(sequence.token_ids, words)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
