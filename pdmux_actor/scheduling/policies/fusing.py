"""The fused steps that could take the next prompts of a model."""

from collections.abc import Iterator, Sequence
from math import ceil, isinf

import msgspec

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, head_sequence
from pdmux_actor.scheduling.queues import ModelQueue
from profiler.latency import ChunkShape

_MOST_SIZES = 4
_MOST_CUTS = 4
_MOST_CUTS_ALONE = 8  # of a prompt behind which none waits


class FusedStep(msgspec.Struct, frozen=True, gc=False):
    """`tokens` in all, decode's among them; `prompts` it completes, a part of one for a chunk. `gap_s` is the gap that
    running sequences have, those of other models too, which decode after it.
    """

    tokens: int
    shapes: Sequence[ChunkShape]
    prompts: float
    step_s: float
    gap_s: float


def fused_steps(state: UnitState, model: str, now_s: float, bearable_s: float) -> Iterator[FusedStep]:
    """Yields fused steps with as many prompts as a step may have, with fewer, and, where no other prompt waits, with as
    much of the only one as makes gaps of `bearable_s` (Sarathi-Serve's stall-free chunks).

    A prompt that is longer is cut, but into few: nothing can overtake it between its steps, as it could between the
    slices of a batch.
    """
    queue = state.queues[model]
    if not queue.running:
        return
    sizes = _StepSizes(state, queue, now_s)
    least: FusedStep | None = None
    for budget in _budgets(state.settings.max_batch_tokens - len(queue.running), sizes.head_tokens):
        step = sizes.step(budget, _MOST_CUTS)
        if step is None:
            break
        if least is None or step.shapes != least.shapes:
            yield step
        least = step
    is_alone = state.num_prompts == 1
    if least is None or least.gap_s <= bearable_s:
        return
    most_cuts = _MOST_CUTS_ALONE if is_alone else _MOST_CUTS
    if (budget := sizes.bearable_tokens(least, bearable_s)) and (step := sizes.step(budget, most_cuts)):
        yield step


class _StepSizes:
    """What fused steps of one model take, by the tokens of prompts in them."""

    def __init__(self, state: UnitState, queue: ModelQueue, now_s: float) -> None:
        self._state, self._queue = state, queue
        self._waited_s = max([q.wait_s(now_s) for q in state.decoding()])
        self._others_s = decode_cycle_s(state, [q for q in state.decoding() if q is not queue], state.total_sms)
        self.head_tokens = queue.chunk_shape(head_sequence(queue)).new_tokens

    def step(self, budget: int, most_cuts: int) -> FusedStep | None:
        """None where the next prompt would be cut into more, and of an engine that cannot fuse."""
        state, queue = self._state, self._queue
        shapes = preview_chunks(queue, state.settings, budget, whole_prompts=self.head_tokens <= budget)
        taken = sum([shape.new_tokens for shape in shapes])
        if self.head_tokens > most_cuts * taken:
            return None
        step_s = state.predictor.mixed_s(queue.model, queue.info.spec, shapes, queue.context_tokens, state.total_sms)
        if isinf(step_s):
            return None
        return FusedStep(
            tokens=taken + len(queue.running),
            shapes=shapes,
            prompts=len(shapes) if self.head_tokens <= taken else taken / self.head_tokens,
            step_s=step_s,
            gap_s=self._waited_s + step_s + self._others_s,
        )

    def bearable_tokens(self, step: FusedStep, bearable_s: float) -> int:
        """Returns how many gaps of `bearable_s` have room for, where each takes as long as in `step`; 0 for none.

        In parts of about equal size: a step for the few tokens that were left would delay requests as one for many.
        """
        decode_s = decode_cycle_s(self._state, [self._queue], self._state.total_sms)
        a_token_s = (step.step_s - decode_s) / (step.tokens - len(self._queue.running))
        room_s = bearable_s - self._waited_s - self._others_s - decode_s
        most = int(room_s / a_token_s) if a_token_s > 0 and room_s > 0 else 0
        return most and ceil(self.head_tokens / ceil(self.head_tokens / most))


def _budgets(most_tokens: int, head_tokens: int) -> list[int]:
    """Tokens of prompts: all that a step may have, halves of it, and just the next prompt."""
    budgets = {most_tokens >> shift for shift in range(_MOST_SIZES)}
    if head_tokens < most_tokens:
        budgets.add(head_tokens)
    return sorted((budget for budget in budgets if budget > 0), reverse=True)
