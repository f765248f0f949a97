"""Values that enter and leave an engine. Plain data: msgspec encodes them, nothing is pickled."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

IDLE_REPORT_EVERY_S = 1.0
"""Between two LoadReports of an engine without work."""


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens or the model's context length
    ABORT = "abort"  # the client went away, or the unit gives the request back: another one may take it
    ERROR = "error"


class StructuredKind(StrEnum):
    """Holds what a StructuredOutput's text is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # of the whole output
    CHOICE = "choice"  # a JSON array of strings, of which the output is one
    GRAMMAR = "grammar"  # EBNF as llama.cpp's and xgrammar's, with a rule `root`
    STRUCTURAL_TAG = "structural_tag"  # xgrammar's JSON: free text with constrained parts, calls of tools among them


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The form that an output must have. `param` names the request's parameter that asked for it, for errors. `before`,
    formats of xgrammar's structural tags as JSON, is what may come before it: thoughts, which have no form. Engines
    that cannot hold outputs to both have it come first.
    """

    kind: StructuredKind
    text: str
    param: str = "response_format"
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessing:
    """Holds what is done to a request's logits before its token is drawn, in this order, as transformers' processors do
    it.

    `logit_bias` is added to the logits of its tokens. `repetition_penalty` divides positive logits of tokens of prompt
    and output, and multiplies negative ones. `frequency_penalty` is subtracted for each time that the output has a
    token, `presence_penalty` once. A token that would complete one of `bad_words` is never drawn. After temperature,
    top-k and top-p, tokens of less than `min_p` times the highest probability are left out.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_p: float = 0.0

    def banned_after(self, token_ids: Sequence[int]) -> list[int]:
        """Returns the tokens that would complete a bad word after `token_ids`."""
        return [w[-1] for w in self.bad_words if len(w) == 1 or tuple(token_ids[1 - len(w) :]) == w[:-1]]

    @property
    def has_phrases(self) -> bool:
        """Says whether a bad word is of several tokens, so that what is banned depends on the last token."""
        return any(len(word) > 1 for word in self.bad_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """`temperature == 0` is greedy. `top_k == 0` means all tokens.

    `logprobs` is how many alternatives to report per token; 0 reports the chosen token only, None nothing;
    `prompt_logprobs` is the same for the tokens of the prompt, each as the model expected it after those before it.
    `stop_token_ids` end the output beside the model's own end tokens, whatever `ignore_eos` says; their text is not
    shown. `processing` None, as nearly always, costs nothing. `structured_output` goes without `min_tokens` and
    `ignore_eos`: what is longer than its form breaks it.
    The draw for output token i depends on (seed, i) only: batching, preemption and migration do not change it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    processing: LogitsProcessing | None = None
    structured_output: StructuredOutput | None = None

    @property
    def named_tokens(self) -> tuple[int, ...]:
        """Every token id that these parameters name."""
        if self.processing is None:
            return self.stop_token_ids
        biased = tuple([token_id for token_id, _ in self.processing.logit_bias])
        return (
            self.stop_token_ids + biased + tuple([token_id for word in self.processing.bad_words for token_id in word])
        )


LEAST_TARGET_S = 1e-6
"""What is divided by targets takes those below as this one; gateways take none below from clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets of a request: time to first token, and each gap between tokens."""

    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`output_token_ids` are tokens that another unit already produced for this request (it died): the engine
    recomputes their KV and goes on after them; they count towards `max_tokens` and are not reported again. Without
    `skip_special_tokens` special tokens are part of the text, but for the one that ends it. What ends the text, a stop
    string or a token, is part of it with `shows_stop`. Cached prefixes are shared by requests of the same `cache_salt`
    only. One that `gives_way` has what others leave, and its KV is taken when they
    need it. One that `embeds` is told its prompt's embedding beside its first token, or the logits of its
    `scored_tokens` there, if it names some; it asks for one token, and has no `output_token_ids`. `traceparent` (W3C
    Trace Context) is that of the span that asks, where it is traced. One that `hands_over` asks for one token, since
    another unit goes on: text that may still change is held back when it ends by its length. `kv_from` is the frame
    stream of the unit that computed the prompt: its KV is fetched there.
    `weights` names those that its tokens were made for (`WeightsOrigin.name`): a unit that has others gives it back.
    """

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    slo: Slo
    output_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    shows_stop: bool = False
    cache_salt: str = ""
    gives_way: bool = False
    embeds: bool = False
    scored_tokens: tuple[int, ...] = ()
    traceparent: str = ""
    hands_over: bool = False
    kv_from: str = ""
    weights: tuple[str | None, ...] = ()


class SampledToken(NamedTuple):
    """`top` holds (token id, log-probability), most probable first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprob(NamedTuple):
    """Says how the model expected a token of the prompt. `rank` 1 is the most probable; `top` as of SampledToken."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds what one engine step produced for one request. `finish` is set exactly once per request, on its last event.
    `cached_tokens` of the prompt had their KV already: told with the first token, and so are `prompt_logprobs`, of all
    tokens of the prompt but the first, and the `embedding` of a request that asks for it: the final norm's output at
    the prompt's last token, not normalised, or logits of its `scored_tokens` behind it; float32, little-endian.

    A Struct, since one is made per sequence and step (a frozen dataclass takes five times as long).
    """

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None  # with FinishReason.ERROR: what happened and the remedy
    param: str | None = None  # with `error`: the parameter of OpenAI's API that the engine cannot take
    cached_tokens: int = 0
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    embedding: bytes = b""


class StepPhase(StrEnum):
    """Names what launches are told apart by, as far as the planner needs it."""

    PREFILL = "prefill"  # alone, as the next
    DECODE = "decode"
    PREFILL_BESIDE = "prefill beside decode"
    DECODE_BESIDE = "decode beside prefill"
    MIXED = "mixed"


class StepTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counts launches of `model` on about `quarters` quarters of the SMs since it came to the unit. `measured_s` is
    what they took, `modelled_s` what the engine's latency model says of them, without what the host adds.
    """

    model: str
    phase: str
    quarters: int
    launches: int = 0
    modelled_s: float = 0.0
    measured_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourLoss:
    """Counts what a model's requests have lost to another model of the unit since it came there, in seconds summed
    over requests: of first tokens and of those after.
    """

    neighbour: str
    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """State of one model inside a unit.

    Ratios and rates are those of the last seconds; an attainment is None while nothing was due. What the latency model
    and its learned factors say now, under the partition in force: a prefill of n new tokens takes
    `prefill_base_s + n * prefill_s_per_token`, a decode step of the running batch `decode_step_s`; 0 is not known.
    A sequence of n tokens holds ceil(n / tokens_per_row) * blocks_per_row blocks.
    """

    model: str
    running: int
    waiting: int
    used_blocks: int
    quota_blocks: int
    preemptions_total: int
    prompt_tokens_total: int
    output_tokens_total: int
    borrowed_blocks: int = 0  # of used_blocks, those beyond the quota
    cached_blocks: int = 0  # prefixes that no sequence uses; taken whenever blocks are needed
    prefix_hit_tokens_total: int = 0  # prompt tokens whose KV came from the cache
    waiting_tokens: int = 0  # known tokens of waiting and partly prefilled sequences that have no KV yet
    blocks_per_row: int = 0
    tokens_per_row: int = 0
    prefix_hit_ratio: float = 0.0  # of the prompt tokens that arrived
    ttft_attainment: float | None = None  # of first tokens, from the request's arrival at the unit
    tbt_attainment: float | None = None  # of gaps between tokens
    request_attainment: float | None = None  # of requests that ended: first token and every gap
    requests_ended_total: int = 0  # with their tokens, or late before
    requests_in_time_total: int = 0
    prompt_tokens_per_s: float = 0.0  # that arrived
    output_tokens_per_s: float = 0.0
    prefill_base_s: float = 0.0
    prefill_s_per_token: float = 0.0
    decode_step_s: float = 0.0
    lost_to: tuple[NeighbourLoss, ...] = ()  # one of each other model of the unit
    ttft_lost_s: float | None = None  # to all of them, on average over the first tokens of the last seconds
    tbt_lost_s: float | None = None  # over the gaps of the last seconds
    giving_way: int = 0  # of running and waiting, those of low priority


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatus:
    """Holds what a lane is busy with: told apart from others by its lane and `took_off_s`, on the engine's clock.
    `is_learned`: launches like it have been measured, so `expected_s` is no guess.
    """

    lane: str
    took_off_s: float
    expected_s: float
    is_learned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """State of a unit. `prefill_sms` and `decode_sms` are the partition in force (cores on a CPU).

    `decode_predicted_s` and `decode_achieved_s` are means over the decode steps of the last seconds, 0 without any;
    beside a prefill the prediction is the worst case. `decode_headroom` is the share of the tightest TBT target among
    running sequences that the achieved step leaves, negative when it is missed; None when nothing decodes.
    """

    models: tuple[ModelLoad, ...]
    total_blocks: int
    free_blocks: int  # holding nothing; cached_blocks can be had as well
    prefill_sms: int
    decode_sms: int
    steps_total: int
    cached_blocks: int = 0
    prefill_bubble_share: float = 0.0  # of the last seconds: the lane idled although it had work and SMs
    decode_bubble_share: float = 0.0
    decode_launches_at_once: float = 0.0  # of different models, on average while any ran; 0 when none did
    decode_predicted_s: float = 0.0
    decode_achieved_s: float = 0.0
    decode_headroom: float | None = None
    unpartitioned_reason: str | None = None  # why lanes compete for all SMs although they could have their own
    guard_cells_moved_total: int = 0  # observations that changed what the contention guard says
    launches: tuple[LaunchStatus, ...] = ()
    steps: tuple[StepTotals, ...] = ()  # for the control loop; gateways are not told

    @property
    def has_work(self) -> bool:
        return any(m.running or m.waiting for m in self.models)

    @property
    def fairness_gap(self) -> float:
        """Max |R_i - R_j| over models with work, R = used / quota blocks (MuxServe's resource consumption)."""
        ratios = [m.used_blocks / m.quota_blocks for m in self.models if m.quota_blocks and (m.running or m.waiting)]
        return max(ratios) - min(ratios) if ratios else 0.0
