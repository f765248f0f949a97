"""Limits of a unit's scheduler."""

from dataclasses import dataclass

from placement.launch_limits import LaunchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """`max_batch_tokens` bounds the new tokens of a prefill batch: a longer prompt is a batch of its own, or several,
    one after the other, where it is beyond `longest_chunk_tokens`. `chunk_budget_tokens` bounds the tokens of a
    chunked-prefill step, `max_running_sequences` the sequences of one model that hold KV.
    """

    max_batch_tokens: int = 2048
    longest_chunk_tokens: int | None = None  # None: policies that take whole prompts do, however long
    chunk_budget_tokens: int = 256
    max_running_sequences: int = 64
    prefix_cache: bool = True
    kv_lendable_share: float = 0.5  # of the idle blocks, that a model may hold beyond its quota
    adapt_quotas: bool = True  # from models that use little of theirs to models that lack blocks
    quota_period_s: float = 4.0
    kv_watermark: float = 0.02  # share of a model's quota kept free at admission, so that running sequences can grow
    static_decode_share: float = 0.5  # of the SMs, for the policies that do not choose a partition
    decode_lanes: int = 1  # decode steps of different models at once, at most, for the policies that ask for several
    max_look_ahead_steps: int = 4
    solo_slice_s: float = 0.05  # of a prefill that has the device to itself, so that it can be preempted
    layer_slicing: bool = True  # these three exist to be switched off, to see what each is worth
    query_sync: bool = True
    preempt_prefill: bool = True
    any_prompt_preempts: bool = False  # of `muxwise`, which asks the first that waits alone; `mux` orders them first
    early_steps: bool = False  # the executor takes a decode step before the one in flight has ended (early_steps.py)
    decode_stretches: bool = True  # False: every decision looks at all queues and lanes; the decisions are the same
    decision_log_entries: int = 4096
    # False: nobody is told more of the unit than gateways are. It logs nothing, and counts neither what neighbours cost
    # nor what steps took; the decisions are the same.
    keeps_accounts: bool = True

    def launch_limits(self) -> LaunchLimits:
        return LaunchLimits(batch_tokens=self.max_batch_tokens, sequences=self.max_running_sequences)
