"""Turns what a validated request says into token ids, and says how many tokens may follow them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdmux_actor.messages import StructuredOutput
from router.errors import ContextLengthExceeded, InvalidRequest
from router.generation import ReplyShape, ThinkingBudget
from router.limits import GatewayLimits
from router.live_view import ContextLengths
from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.parameters import MAX_PROMPT_LOGPROBS, GenerationParameters
from router.openai.tools import ToolUse
from router.request_terms import AdmissionRequest
from router.serving.thinking import thinking_budget
from router.text.calls import TokenizerLoaded
from router.text.reply_templates import forced_call
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_MOST_TOKENS = 256  # of one bad word


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`echo` is what the reply repeats before the completion, `reply` how it is read, None where it is all answer.
    `calls_form` keeps calls in it to the schemas of strict tools, where the model's way to call is known.
    `before_answer` is what may come before an answer that has a form, `thinking` bounds thoughts.
    """

    token_ids: tuple[int, ...]
    echo: str = ""
    reply: ReplyShape | None = None
    calls_form: StructuredOutput | None = None
    before_answer: str = ""
    thinking: ThinkingBudget | None = None
    skip_special_tokens: bool = True


async def chat_prompt(
    request: ChatCompletionRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> Prompt:
    """`max_tokens` is the longest sequence that the model takes. Raises as `Tokenizers.encode_chat`, and InvalidRequest
    for tools that do not fit together, or a last message that cannot be continued.
    """
    use = request.tool_use
    if use.strict:
        use.check_strict()
    request.check()
    goes_on = bool(request.continue_final_message)
    chat = await tokenizers.encode_chat(
        card,
        [message.for_template() for message in request.messages],
        request.template_arguments,
        tools=use.offered,
        effort=request.asked_effort,
        max_tokens=max_tokens,
        add_generation_prompt=not goes_on,
        add_special_tokens=bool(request.add_special_tokens),
        continue_final_message=goes_on,
    )
    if not chat.token_ids:
        raise InvalidRequest("The messages render to an empty prompt.", param="messages")
    loaded = await tokenizers.of(card)
    shape = _reply_shape(request, use, chat.prompt_end, loaded)
    budget = request.asked_thinking_tokens
    marks_are_special = loaded.marks_are_special and shape is not None and not use.must_call
    return Prompt(
        token_ids=tuple(chat.token_ids),
        reply=shape,
        thinking=None if budget is None else await thinking_budget(budget, shape, card, tokenizers),
        before_answer=_before_answer(request, use, loaded),
        calls_form=use.strict_calls(loaded.call_marks) if use.strict and request.structured_output is None else None,
        skip_special_tokens=request.skips_special_tokens and not marks_are_special,
    )


def _reply_shape(
    request: ChatCompletionRequest, use: ToolUse, prompt_end: str, loaded: TokenizerLoaded
) -> ReplyShape | None:
    if use.must_call:
        return ReplyShape(template=forced_call(use.only), prompt_end="", tools=use.offered)
    if request.structured_output is not None and not loaded.before_answer:
        return None  # the mask leaves room for nothing but the answer
    may_call = use.offered and request.structured_output is None
    template = loaded.response_template if may_call else loaded.callless_template
    return None if template is None else ReplyShape(template=template, prompt_end=prompt_end, tools=use.offered)


def _before_answer(request: ChatCompletionRequest, use: ToolUse, loaded: TokenizerLoaded) -> str:
    return "" if request.structured_output is None or use.must_call else loaded.before_answer


async def completion_prompts(
    request: CompletionRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> list[Prompt]:
    """`max_tokens` is the longest sequence that the model takes. Raises as `Tokenizers.encode`, and:

    InvalidRequest: a prompt is empty, or holds token ids that the model does not have, or parameters do not fit
            together.
    """
    request.check()
    prompts = []
    for prompt in request.prompts:
        token_ids = await prompt_tokens(
            prompt,
            card,
            tokenizers,
            param="prompt",
            max_tokens=max_tokens,
            add_special_tokens=request.add_special_tokens is not False,
        )
        echo = ""
        if request.echo:
            echo = prompt if isinstance(prompt, str) else await tokenizers.decode(card, token_ids)
        skips = request.skips_special_tokens
        prompts.append(Prompt(token_ids=tuple(token_ids), echo=echo, skip_special_tokens=skips))
    return prompts


async def prompt_tokens(
    prompt: str | Sequence[int],
    card: ModelCard,
    tokenizers: Tokenizers,
    *,
    param: str,
    max_tokens: int,
    add_special_tokens: bool = True,
) -> Sequence[int]:
    """Token ids of a text, or those that were sent, once they are looked at. Raises as `completion_prompts`."""
    if isinstance(prompt, str):
        special = add_special_tokens
        token_ids = await tokenizers.encode(card, prompt, add_special_tokens=special, max_tokens=max_tokens)
    else:
        token_ids = list(prompt)
        vocab_size = (await tokenizers.of(card)).vocab_size
        highest = max(token_ids)
        if highest >= vocab_size:
            message = f"Token id {highest} is outside the model's vocabulary of {vocab_size} tokens."
            raise InvalidRequest(message, param=param)
    if not token_ids:
        raise InvalidRequest("The prompt is empty: it has no tokens.", param=param)
    return token_ids


def check_prompt_logprobs(request: GenerationParameters, prompts: Sequence[Prompt]) -> None:
    """Raises InvalidRequest: more log-probabilities of prompts are asked for than a reply may have, or by a stream."""
    alternatives = request.asked_prompt_logprobs
    if alternatives is None:
        return
    if request.prompt_logprobs is not None and request.streams:
        message = "'prompt_logprobs' cannot be streamed; leave 'stream' out, or use 'echo' with 'logprobs'."
        raise InvalidRequest(message, param="prompt_logprobs")
    entries = sum(len(prompt.token_ids) for prompt in prompts) * request.num_choices * (1 + alternatives)
    if entries > MAX_PROMPT_LOGPROBS:
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        message = (
            f"The tokens of prompts and choices, each with {alternatives} alternatives, would have {entries} "
            f"log-probabilities; a request may have {MAX_PROMPT_LOGPROBS}. Send fewer prompts or choices per request, "
            f"or lower {param!r}."
        )
        raise InvalidRequest(message, param=param)


def longest_of(prompts: Sequence[Prompt], limits: GatewayLimits, param: str) -> int:
    """Returns the tokens of the longest prompt. Raises InvalidRequest: the gateway takes no such prompt."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest > limits.max_prompt_tokens:
        message = f"The prompt has {longest} tokens; this gateway takes {limits.max_prompt_tokens}."
        raise InvalidRequest(message, param=param)
    return longest


def completion_tokens(*, prompt_tokens: int, asked: int | None, context: ContextLengths, param: str) -> int:
    """Returns what `max_tokens` means for this prompt; without it, all that units take now.

    Raises:
        ContextLengthExceeded: the prompt, or the prompt and what was asked for, do not fit the model.
    """
    room = context.lately - prompt_tokens
    if room < (asked or 1):
        raise ContextLengthExceeded(
            max_model_len=context.lately, prompt_tokens=prompt_tokens, max_tokens=asked, param=param
        )
    if asked is not None:
        return max(1, asked)  # an engine gives every prompt a token
    return context.now - prompt_tokens if context.now > prompt_tokens else room


def too_long(request: AdmissionRequest, longest: int | None) -> ContextLengthExceeded | None:
    """Says why no unit will take a request that was let in, where quotas have been lowered since, and for good.
    `longest`: tokens of the longest sequence that one takes; None: not known.
    """
    asked = None if request.fills_context else request.max_tokens
    if longest is None or request.prompt_tokens + (asked or 1) <= longest:
        return None
    return ContextLengthExceeded(
        max_model_len=longest, prompt_tokens=request.prompt_tokens, max_tokens=asked, param=request.param
    )


async def bad_word_tokens(
    request: GenerationParameters, card: ModelCard, tokenizers: Tokenizers
) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text and, where that is another token, as it follows a space: as vLLM reads them.
    Raises InvalidRequest: the model's tokenizer makes nothing of a word.
    """
    words: dict[tuple[int, ...], None] = {}
    for number, word in enumerate(request.bad_words or ()):
        plain = await tokenizers.encode(card, word, add_special_tokens=False, max_tokens=_MOST_TOKENS)
        spaced = await tokenizers.encode(card, f" {word.lstrip()}", add_special_tokens=False, max_tokens=_MOST_TOKENS)
        if not plain:
            message = f"'bad_words[{number}]' is no token of this model; leave it out."
            raise InvalidRequest(message, param=f"bad_words[{number}]")
        words[tuple(plain)] = None
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            words[tuple(spaced)] = None
    return tuple(words)


async def check_named_tokens(request: GenerationParameters, card: ModelCard, tokenizers: Tokenizers) -> None:
    """Raises InvalidRequest: a parameter names a token that the model does not have."""
    for param, token_id in request.named_tokens:
        vocab_size = (await tokenizers.of(card)).vocab_size
        if token_id >= vocab_size:
            message = f"Token id {token_id} of {param!r} is outside the model's vocabulary of {vocab_size} tokens."
            raise InvalidRequest(message, param=param)
