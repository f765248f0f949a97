"""When a sequence is at its end."""

from pdmux_actor.messages import FinishReason, SampledToken
from pdmux_actor.scheduling.sequence import Sequence


def append_tokens(
    sequence: Sequence, sampled: tuple[SampledToken, ...], *, eos_token_ids: frozenset[int], max_len: int
) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
    """Appends sampled tokens up to the first that ends the sequence; what a look-ahead sampled beyond it is dropped.

    Returns the tokens appended, and why the sequence ended, if it did. `max_len` is in tokens, prompt included.
    """
    params, token_ids = sequence.request.sampling, sequence.token_ids
    longest = min(max_len, sequence.num_prompt_tokens + params.max_tokens)
    for count, token in enumerate(sampled, start=1):
        token_ids.append(token.token_id)
        may_stop = token.token_id in eos_token_ids and not params.ignore_eos
        if may_stop and sequence.num_output_tokens > params.min_tokens:
            return sampled[:count], FinishReason.STOP
        if len(token_ids) >= longest:
            return sampled[:count], FinishReason.LENGTH
    return sampled, None
