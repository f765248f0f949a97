"""Request fields that both generation endpoints share. docs/api.md lists them for users."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from pdmux_actor.messages import LogitsProcessing, SamplingParams, StructuredOutput
from router.openai.output_form import Choices, FormText, ResponseFormat, StructuredOutputs, form_of
from router.openai.peer_parameters import (
    REFUSED_PEER_PARAMETERS,
    InertPeerParameters,
    RefusedPeerParameters,
)
from router.openai.request_part import Integer, RequestPart
from router.request_terms import Priority

MAX_STOP_STRINGS = 16
MAX_N = 16
MAX_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 1 << 16  # of all prompts and choices of a request: some 0.1 s to write, in one go
MAX_STOP_CHARACTERS = 1024
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 128
MAX_SESSION_CHARACTERS = 128  # as of the header x-muxfleet-conversation
_SEED_MASK = 2**63 - 1
_MOST_TOP_K = 2**31 - 1  # engines count in 32 bits; no vocabulary has more


Tokens = Annotated[Integer, Field(ge=1, le=2**31)]

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIdText = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]

# Parameters that change the output and are not implemented: only the value that changes nothing is accepted.
UNIMPLEMENTED = frozenset(
    {
        "audio",
        "modalities",
        "moderation",
        "suffix",
        "verbosity",
        "web_search_options",
        *REFUSED_PEER_PARAMETERS,
    }
)


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
_TIERS: Mapping[str, Priority] = MappingProxyType(
    {
        "default": Priority.NORMAL,
        "scale": Priority.NORMAL,
        "flex": Priority.LOW,
        "priority": Priority.HIGH,
        "fast": Priority.HIGH,  # OpenAI answers it as "priority", too
        "ultrafast": Priority.HIGH,
    }
)


class StreamOptions(RequestPart):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # accepted; never applied


class GenerationParameters(InertPeerParameters, RefusedPeerParameters):
    model: str = Field(min_length=1)
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, le=2**31)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    n: Annotated[Integer, Field(ge=1, le=MAX_N)] | None = None
    min_tokens: Annotated[Integer, Field(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    logit_bias: (
        Annotated[dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASED_TOKENS)]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] | None = None
    response_format: ResponseFormat | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None  # SGLang's name of it
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None  # without it: around a text, and not around a chat, which has its own
    cache_salt: CacheSalt | None = None
    extra_key: CacheSalt | None = None
    session_id: Annotated[str, Field(min_length=1, max_length=MAX_SESSION_CHARACTERS)] | None = None
    priority: Annotated[Integer, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    service_tier: ServiceTier | None = None
    prompt_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    structured_outputs: StructuredOutputs | None = None

    # vLLM's older names of what structured_outputs holds.
    guided_json: str | dict[str, Any] | None = None
    guided_regex: FormText | None = None
    guided_choice: Choices | None = None
    guided_grammar: FormText | None = None

    # SGLang's names of the same.
    regex: FormText | None = None
    ebnf: FormText | None = None
    structural_tag: FormText | None = None

    # Accepted and without effect here.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def skips_special_tokens(self) -> bool:
        return self.skip_special_tokens is not False

    @property
    def shows_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def asked_priority(self) -> Priority | None:
        """Returns the class that vLLM's `priority` (lower is earlier) or else `service_tier` asks for."""
        if self.priority is not None:
            return Priority.NORMAL if not self.priority else Priority.LOW if self.priority > 0 else Priority.HIGH
        return None if self.service_tier is None else _TIERS.get(self.service_tier)

    @property
    def prefix_salt(self) -> str:
        """Returns what sets the request's cached prefixes apart from those of other salts."""
        if self.cache_salt is None and self.extra_key is None:
            return ""
        return f"{len(self.cache_salt or '')}:{self.cache_salt or ''}{self.extra_key or ''}"

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @cached_property
    def structured_output(self) -> StructuredOutput | None:
        """Returns the constraint on the output: several ask, and a large schema takes its time.

        Raises InvalidRequest: more than one form is asked for, or one that cannot be.
        """
        return self._form()

    def _form(self) -> StructuredOutput | None:
        guided = self._guided_forms()
        if all(form is None for form in (self.response_format, self.structured_outputs, *guided.values())):
            return None
        return form_of(self.response_format, self.structured_outputs, guided)

    def _guided_forms(self) -> dict[str, Any]:
        return {
            "guided_json": self.guided_json,
            "guided_regex": self.guided_regex,
            "guided_choice": self.guided_choice,
            "guided_grammar": self.guided_grammar,
            "regex": self.regex,
            "ebnf": self.ebnf,
            "structural_tag": self.structural_tag,
        }

    @property
    def named_tokens(self) -> Iterator[tuple[str, int]]:
        """Token ids that the request names, each with the parameter."""
        for text in self.logit_bias or ():
            yield "logit_bias", int(text)
        for token_id in self.stop_token_ids or ():
            yield "stop_token_ids", token_id

    def _processing(self, bad_words: tuple[tuple[int, ...], ...]) -> LogitsProcessing | None:
        processing = LogitsProcessing(
            logit_bias=tuple((int(token_id), bias) for token_id, bias in (self.logit_bias or {}).items()),
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            bad_words=bad_words,
            min_p=self.min_p or 0.0,
        )
        return None if processing == LogitsProcessing() else processing

    @property
    def max_calls(self) -> int | None:
        """Calls of tools that a choice may make."""
        return None

    @property
    def is_prompt_only(self) -> bool:
        """Nothing is to be generated."""
        return False

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        """Alternatives per token; 0: the chosen token only; None: nothing."""
        raise NotImplementedError

    @property
    def asked_prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt."""
        return self.prompt_logprobs

    def sampling(
        self,
        *,
        max_tokens: int,
        choice: int,
        fallback_seed: int,
        form: StructuredOutput | None = None,
        bad_words: tuple[tuple[int, ...], ...] = (),
    ) -> SamplingParams:
        """`choice` counts the request's choices: each draws from its own seed, the first from the client's. `form` is
        `structured_output`, `bad_words` are those of the request in tokens.
        """
        seed = self.seed if self.seed is not None else fallback_seed
        greedy = self.top_p == 0.0  # nothing but the most probable token is left
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if greedy else 1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if greedy or self.top_p is None else self.top_p,
            top_k=min(max(0, self.top_k or 0), _MOST_TOP_K),
            seed=derived_seed(seed, choice),
            min_tokens=min(self.min_tokens or 0, max_tokens) if form is None else 0,
            ignore_eos=bool(self.ignore_eos) and form is None,
            logprobs=self.asked_logprobs,
            prompt_logprobs=self.asked_prompt_logprobs,
            stop_token_ids=tuple(dict.fromkeys(self.stop_token_ids or ())),
            processing=self._processing(bad_words),
            structured_output=form,
        )


def derived_seed(seed: int, choice: int) -> int:
    """A seed in [0, 2^63) per choice; choice 0 keeps the client's (splitmix64 otherwise)."""
    if choice == 0:
        return seed & _SEED_MASK
    mixed = (seed + choice * 0x9E3779B97F4A7C15) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) & _SEED_MASK
