"""Prompts that share what the trace says they share, made at once: a simulation needs no text that looks like text."""

from traces.record import TraceRecord

_FILLER = 3
_DIGITS = 4
_FIRST = 4  # smaller ids are the filler and the two marks
_BLOCK_MARK, _OWN_MARK = 1, 2


def simulated_prompt(record: TraceRecord, *, index: int, block_tokens: int | None, vocab_size: int) -> tuple[int, ...]:
    """`record.input_tokens` ids. A block's first ids spell its hash, those of what no hash covers spell `index`.

    The names of KV rows chain, so two prompts share rows exactly as far as their blocks are the same.

    >>> a = TraceRecord(arrival_s=0, input_tokens=20, output_tokens=1, prefix_block_hashes=(7, 8))
    >>> b = TraceRecord(arrival_s=0, input_tokens=20, output_tokens=1, prefix_block_hashes=(7, 9))
    >>> one, two = (simulated_prompt(r, index=0, block_tokens=10, vocab_size=1000) for r in (a, b))
    >>> len(one), one[:10] == two[:10], one[10:] == two[10:]
    (20, True, False)
    """
    ids: list[int] = []
    if block_tokens is not None:
        for block in record.prefix_block_hashes:
            ids += _piece(_BLOCK_MARK, block, block_tokens, vocab_size)
    missing = record.input_tokens - len(ids)
    if missing > 0:
        ids += _piece(_OWN_MARK, index, missing, vocab_size)
    return tuple(ids[: record.input_tokens])


def _piece(mark: int, number: int, length: int, vocab_size: int) -> list[int]:
    base = vocab_size - _FIRST
    spelled = [mark]
    for _ in range(_DIGITS):
        number, digit = divmod(number, base)
        spelled.append(_FIRST + digit)
    return (spelled + [_FILLER] * (length - len(spelled)))[:length]
