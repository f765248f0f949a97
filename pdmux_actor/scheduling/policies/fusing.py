"""The fused steps that could take the next prompts of a model."""

from collections.abc import Iterator, Sequence
from math import isinf

import msgspec

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import decode_cycle_s, head_sequence
from profiler.latency import ChunkShape

_MOST_SIZES = 4
_MOST_CUTS = 4


class FusedStep(msgspec.Struct, frozen=True, gc=False):
    """`tokens` in all, decode's among them; `prompts` it completes, a part of one for a chunk. `gap_s` is the gap that
    running sequences have, those of other models too, which decode after it.
    """

    tokens: int
    shapes: Sequence[ChunkShape]
    prompts: float
    step_s: float
    gap_s: float


def fused_steps(state: UnitState, model: str, now_s: float) -> Iterator[FusedStep]:
    """Yields fused steps with as many prompts as a step may have, and with fewer.

    A prompt that is longer is cut, but into few: nothing can overtake it between its steps, as it could between the
    slices of a batch.
    """
    queue = state.queues[model]
    decoding = len(queue.running)
    if not decoding:
        return
    others_s = decode_cycle_s(state, [q for q in state.decoding() if q is not queue], state.total_sms)
    waited_s = max(q.wait_s(now_s) for q in state.decoding())
    head_tokens = queue.chunk_shape(head_sequence(queue)).new_tokens
    last: Sequence[ChunkShape] = ()
    for budget in _budgets(state.settings.max_batch_tokens - decoding, head_tokens):
        shapes = preview_chunks(queue, state.settings, budget, whole_prompts=head_tokens <= budget)
        if shapes == last:
            continue
        last = shapes
        taken = sum([shape.new_tokens for shape in shapes])
        if head_tokens > _MOST_CUTS * taken:
            return
        step_s = state.predictor.mixed_s(model, queue.info.spec, shapes, queue.context_tokens, state.total_sms)
        if isinf(step_s):  # of an engine that cannot fuse
            return
        yield FusedStep(
            tokens=taken + decoding,
            shapes=shapes,
            prompts=len(shapes) if head_tokens <= taken else taken / head_tokens,
            step_s=step_s,
            gap_s=waited_s + step_s + others_s,
        )


def _budgets(most_tokens: int, head_tokens: int) -> list[int]:
    """Tokens of prompts: all that a step may have, halves of it, and just the next prompt."""
    budgets = {most_tokens >> shift for shift in range(_MOST_SIZES)}
    if head_tokens < most_tokens:
        budgets.add(head_tokens)
    return sorted((budget for budget in budgets if budget > 0), reverse=True)
