"""Answers what a text's tokens are, and the other way round, as the model's requests are tokenised."""

from router.errors import InvalidRequest
from router.openai.tokenize_requests import DetokenizeBody, TokenizeRequest
from router.openai.tools import tool_use
from router.text.tokenization import Tokenizers
from router.view import ModelCard


async def tokenize(
    request: TokenizeRequest, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int
) -> tuple[list[int], list[str] | None]:
    """Tokens and, where they are asked for, their names in the vocabulary. Raises as `Tokenizers.encode_chat`."""
    request.check()
    if request.messages is None:
        special = request.add_special_tokens is not False
        text = request.prompt or ""
        token_ids = await tokenizers.encode(card, text, add_special_tokens=special, max_tokens=max_tokens)
    else:
        goes_on = bool(request.continue_final_message)
        chat = await tokenizers.encode_chat(
            card,
            [message.for_template() for message in request.messages],
            request.chat_template_kwargs or {},
            tools=tool_use(request.tools or [], None, parallel=None).offered,
            max_tokens=max_tokens,
            add_generation_prompt=request.add_generation_prompt is not False and not goes_on,
            continue_final_message=goes_on,
            add_special_tokens=bool(request.add_special_tokens),
        )
        token_ids = chat.token_ids
    return token_ids, await tokenizers.names(card, token_ids) if request.return_token_strs else None


async def detokenize(request: DetokenizeBody, card: ModelCard, tokenizers: Tokenizers, *, max_tokens: int) -> str:
    """The text with its special tokens. Raises as `Tokenizers.decode`, and InvalidRequest: a token is not the model's,
    or there are more than `max_tokens`.
    """
    if len(request.tokens) > max_tokens:
        message = f"'tokens' has {len(request.tokens)} entries; this gateway takes {max_tokens}."
        raise InvalidRequest(message, param="tokens")
    vocab_size = (await tokenizers.of(card)).vocab_size
    highest = max(request.tokens, default=0)
    if highest >= vocab_size:
        message = f"Token id {highest} is outside the model's vocabulary of {vocab_size} tokens."
        raise InvalidRequest(message, param="tokens")
    return await tokenizers.decode(card, request.tokens, skip_special_tokens=False)
