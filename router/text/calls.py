"""Defines the calls to the process that works on text, frames of JSON, and its answers, frames of msgpack.

Calls hold tools and arguments as clients write them: with numbers of any size, which msgpack does not have.
"""

from typing import Any

import msgspec

from router.text.call_marks import CallMarks
from router.text.checkpoint_modules import RerankerHead


class TokenizerKey(msgspec.Struct, frozen=True, array_like=True):
    source: str
    revision: str | None


class LoadTokenizer(msgspec.Struct, frozen=True, tag="load"):
    call: int
    tokenizer: TokenizerKey


class EncodeChat(msgspec.Struct, frozen=True, tag="chat"):
    """Messages and tools to tokens. The template may take `template_timeout_s`; more than `max_tokens` are only
    counted.
    """

    call: int
    tokenizer: TokenizerKey
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    template_arguments: dict[str, Any]
    template_timeout_s: float
    max_tokens: int
    add_generation_prompt: bool = True
    add_special_tokens: bool = False  # beside those that the template writes
    continue_final_message: bool = False  # the prompt ends in the last message's text; goes without a generation prompt


class EncodeText(msgspec.Struct, frozen=True, tag="text"):
    call: int
    tokenizer: TokenizerKey
    text: str
    add_special_tokens: bool
    max_tokens: int


class DecodeTokens(msgspec.Struct, frozen=True, tag="decode"):
    call: int
    tokenizer: TokenizerKey
    token_ids: list[int]
    skip_special_tokens: bool = True


class NameTokens(msgspec.Struct, frozen=True, tag="name_tokens"):
    """Asks what the vocabulary calls these tokens."""

    call: int
    tokenizer: TokenizerKey
    token_ids: list[int]


class OpenReply(msgspec.Struct, frozen=True, tag="open_reply"):
    """A reply begins whose parts `template` names, in transformers' form of a response template."""

    call: int
    reply: str
    template: dict[str, Any]
    prompt_end: str
    tools: list[dict[str, Any]]


class ReadReply(msgspec.Struct, frozen=True, tag="read_reply"):
    """Holds what came next of an open reply; `ends`: nothing follows. To read it may take `timeout_s`."""

    call: int
    reply: str
    texts: list[str]
    ends: bool
    timeout_s: float


class TokenizerLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """`template_variables` are what a request may set of what the template reads; None: there is no template.
    `characters_per_token` bounds how many characters one token can stand for; None: nothing bounds it.
    `response_template` names the parts of a reply, `callless_template` those of one that may call nothing; None: it is
    all answer. `marks_are_special`: units must show special tokens for that.
    `call_marks` say how the model writes calls of tools; None: it is not known. `before_answer` is what may come before
    an answer that has a form (StructuredOutput.before); "": nothing. `reranker` is a text where the model is none: why.
    `unserved_embeddings` says why its embeddings are not served; "": they are. `declares_embeddings`: its checkpoint
    says that it is made for them. `efforts` are those of reasoning that the template knows; empty: any.
    """

    call: int
    vocab_size: int
    template_variables: list[str] | None
    characters_per_token: int | None
    response_template: dict[str, Any] | None
    callless_template: dict[str, Any] | None
    marks_are_special: bool
    call_marks: CallMarks | None = None
    before_answer: str = ""
    reranker: RerankerHead | str = ""
    unserved_embeddings: str = ""
    declares_embeddings: bool = False
    efforts: list[str] = []


class TokenizerFailed(msgspec.Struct, frozen=True, tag="failed"):
    call: int
    reason: str


class TokenizerGone(msgspec.Struct, frozen=True, tag="gone"):
    """It was the least recently used of too many: load it anew."""

    call: int


class Encoded(msgspec.Struct, frozen=True, tag="encoded"):
    """`token_ids` is empty where `num_tokens` exceeds what was asked for. `prompt_end` are the last characters."""

    call: int
    num_tokens: int
    token_ids: list[int]
    prompt_end: str = ""


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    call: int
    text: str


class TokensNamed(msgspec.Struct, frozen=True, tag="tokens_named"):
    call: int
    names: list[str]


class TextRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The template refuses the messages or, `too_slow`, did not come to an end in time, of a prompt or a reply."""

    call: int
    reason: str
    too_slow: bool = False


class CalledTool(msgspec.Struct, frozen=True, array_like=True):
    """`arguments` is JSON text, as far as the model keeps to it."""

    name: str
    arguments: str


class ReplyParts(msgspec.Struct, frozen=True, array_like=True):
    """Holds what a piece of text added to a reply; `is_reasoning`: the piece belongs to the reasoning; `is_call`: it
    ends in the midst of a call, which is told when it is whole.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[CalledTool] = []
    is_reasoning: bool = False
    is_call: bool = False


class ReplyRead(msgspec.Struct, frozen=True, tag="read"):
    """Parts of each text."""

    call: int
    parts: list[ReplyParts]


class ReplyUnknown(msgspec.Struct, frozen=True, tag="unknown_reply"):
    """It was opened in a process that has ended, or so long ago that it was forgotten: open it anew."""

    call: int


TokenizerCall = EncodeChat | EncodeText | DecodeTokens | NameTokens
ReplyCall = OpenReply | ReadReply
TextCall = LoadTokenizer | TokenizerCall | OpenReply | ReadReply
TextAnswer = (
    TokenizerLoaded
    | TokenizerFailed
    | TokenizerGone
    | Encoded
    | Decoded
    | TokensNamed
    | TextRefused
    | ReplyRead
    | ReplyUnknown
)
