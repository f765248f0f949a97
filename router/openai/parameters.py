"""Request fields that both generation endpoints share. docs/api.md lists them for users."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pdmux_actor.messages import SamplingParams, StructuredKind, StructuredOutput

MAX_STOP_STRINGS = 16
MAX_N = 16
MAX_LOGPROBS = 20
MAX_STOP_CHARACTERS = 1024
_SEED_MASK = 2**63 - 1


def _whole(value: object) -> object:
    """JSON Schema's integers are numbers without a fraction: 1.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Tokens = Annotated[Integer, Field(ge=1, le=2**31)]

Empty = Annotated[list[Any], Field(max_length=0)]
EmptyObject = Annotated[dict[str, Any], Field(max_length=0)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]

# Parameters that change the output and are not implemented: only the value that changes nothing is accepted.
UNIMPLEMENTED = frozenset(
    {
        "audio",
        "best_of",
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "modalities",
        "moderation",
        "presence_penalty",
        "repetition_penalty",
        "stop_token_ids",
        "suffix",
        "verbosity",
        "web_search_options",
    }
)


class RequestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextFormat(RequestPart):
    type: Literal["text"]


class JsonObjectFormat(RequestPart):
    type: Literal["json_object"]


class NamedSchema(RequestPart):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # always is


class JsonSchemaFormat(RequestPart):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StreamOptions(RequestPart):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # accepted; never applied


class GenerationParameters(RequestPart):
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
    response_format: ResponseFormat | None = None
    skip_special_tokens: bool | None = None

    # Accepted and without effect here.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    # See UNIMPLEMENTED.
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    repetition_penalty: One | None = None
    min_p: Zero | None = None
    logit_bias: EmptyObject | None = None
    stop_token_ids: Empty | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def skips_special_tokens(self) -> bool:
        return self.skip_special_tokens is not False

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
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def structured_output(self) -> StructuredOutput | None:
        """Returns the constraint on the output; for `json_object` it is any JSON object, as OpenAI has it."""
        match self.response_format:
            case JsonSchemaFormat(json_schema=named):
                schema = msgspec.json.encode(named.json_schema).decode()
                return StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=schema)
            case JsonObjectFormat():
                return StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text='{"type":"object"}')
        return None

    @property
    def max_calls(self) -> int | None:
        """Calls of tools that a choice may make."""
        return None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        """Alternatives per token; 0: the chosen token only; None: nothing."""
        raise NotImplementedError

    def sampling(self, *, max_tokens: int, choice: int, fallback_seed: int) -> SamplingParams:
        """`choice` counts the request's choices: each draws from its own seed, the first from the client's."""
        seed = self.seed if self.seed is not None else fallback_seed
        greedy = self.top_p == 0.0  # nothing but the most probable token is left
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if greedy else 1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if greedy or self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            seed=derived_seed(seed, choice),
            min_tokens=min(self.min_tokens or 0, max_tokens),
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.asked_logprobs,
            structured_output=self.structured_output,
        )


def derived_seed(seed: int, choice: int) -> int:
    """A seed in [0, 2^63) per choice; choice 0 keeps the client's (splitmix64 otherwise)."""
    if choice == 0:
        return seed & _SEED_MASK
    mixed = (seed + choice * 0x9E3779B97F4A7C15) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) & _SEED_MASK
