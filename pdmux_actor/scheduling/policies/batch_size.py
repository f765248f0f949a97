"""Works out how many prompts are prefilled at once."""

from pdmux_actor.scheduling.batching import preview_chunks
from pdmux_actor.scheduling.policies.base import UnitState
from pdmux_actor.scheduling.policies.forecast import whole_prefill_s

# A prompt joins a batch that saves at least this share of the prompt's own time. Where prefill is compute-bound a batch
# saves nothing: its first prompts only wait for its last.
_LEAST_SAVING = 0.25


def prompts_worth_batching(state: UnitState, model: str, sms: int) -> int:
    """Returns how many of the next prompts gain by being one batch, at least 1."""
    shapes = preview_chunks(state.queues[model], state.settings, state.settings.max_batch_tokens, whole_prompts=True)
    batch_s = whole_prefill_s(state, model, shapes[:1], sms)
    for count in range(1, len(shapes)):
        longer_s = whole_prefill_s(state, model, shapes[: count + 1], sms)
        own_s = whole_prefill_s(state, model, shapes[count : count + 1], sms)
        if longer_s - batch_s > (1 - _LEAST_SAVING) * own_s:
            return count
        batch_s = longer_s
    return max(1, len(shapes))
