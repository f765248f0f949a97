"""Limits of a unit's scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """`max_batch_tokens` bounds the new tokens of a prefill batch (a longer prompt is a batch of its own),
    `chunk_budget_tokens` the tokens of a chunked-prefill step, `max_running_sequences` the sequences of one model that
    hold KV.
    """

    max_batch_tokens: int = 2048
    chunk_budget_tokens: int = 256
    max_running_sequences: int = 64
    kv_watermark: float = 0.02  # share of a model's quota kept free at admission, so that running sequences can grow
    decision_log_entries: int = 4096
