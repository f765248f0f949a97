"""When a sequence is at its end."""

from pdmux_actor.messages import FinishReason, SampledToken
from pdmux_actor.scheduling.sequence import Sequence


def append_tokens(
    sequence: Sequence, sampled: tuple[SampledToken, ...], *, eos_token_ids: frozenset[int], max_len: int
) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
    """Appends sampled tokens up to the first that ends the sequence; what a look-ahead sampled beyond it is dropped.

    Returns the tokens appended, and why the sequence ended, if it did. `max_len` is in tokens, prompt included.
    """
    params = sequence.request.sampling
    for count, token in enumerate(sampled, start=1):
        sequence.token_ids.append(token.token_id)
        generated = sequence.num_output_tokens
        stops = token.token_id in eos_token_ids and not params.ignore_eos and generated > params.min_tokens
        if stops:
            return sampled[:count], FinishReason.STOP
        if generated >= params.max_tokens or len(sequence.token_ids) >= max_len:
            return sampled[:count], FinishReason.LENGTH
    return sampled, None
