"""Applies a step that gives every running sequence of a model as many tokens, and after which all of them go on.

Nearly all steps are such. What has to be known for it of the batch as a whole (when the first sequence may end, which
target is the tightest) is kept from step to step, so that a sequence costs what its tokens do and no more.
"""

from collections.abc import Sequence

import msgspec

from pdmux_actor.messages import TokenEvent
from pdmux_actor.scheduling.launch import LaunchCompletion
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import TokenSequence

_NOBODY: Sequence[TokenSequence] = ()


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
        queue.note_contexts(longer)
        bounds.note(longer, steps, now_s)
        return [TokenEvent(request_id=name, tokens=sampled) for name, sampled in zip(ids, tokens, strict=True)]
