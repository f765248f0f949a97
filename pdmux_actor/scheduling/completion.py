"""When a sequence is at its end."""

from pdmux_actor.messages import FinishReason, SampledToken
from pdmux_actor.scheduling.sequence import TokenSequence


def append_tokens(
    sequence: TokenSequence, sampled: tuple[SampledToken, ...], eos_token_ids: frozenset[int], max_len: int
) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
    """Appends sampled tokens up to the first that ends the sequence; what a look-ahead sampled beyond it is dropped.

    Returns the tokens appended, and why the sequence ended, if it did. `max_len` is in tokens, prompt included.
    """
    params, token_ids = sequence.request.sampling, sequence.token_ids
    before, longest = len(token_ids), sequence.num_prompt_tokens + params.max_tokens
    if longest > max_len:
        longest = max_len
    for token in sampled:
        token_id = token.token_id
        token_ids.append(token_id)
        may_stop = token_id in eos_token_ids and not params.ignore_eos
        if may_stop and sequence.num_output_tokens > params.min_tokens:
            return sampled[: len(token_ids) - before], FinishReason.STOP
        if len(token_ids) >= longest:
            return sampled[: len(token_ids) - before], FinishReason.LENGTH
    return sampled, None
