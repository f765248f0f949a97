"""Tokens that a request's parameters name, or name the text of."""

from router.errors import InvalidRequest
from router.openai.parameters import GenerationParameters
from router.text.tokenization import Tokenizers
from router.view import ModelCard

_MOST_TOKENS = 256  # of one bad word


async def bad_word_tokens(
    request: GenerationParameters, card: ModelCard, tokenizers: Tokenizers
) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text and, where that is another token, as it follows a space: as vLLM reads them."""
    words: dict[tuple[int, ...], None] = {}
    for word in request.bad_words or ():
        plain = await tokenizers.encode(card, word, add_special_tokens=False, max_tokens=_MOST_TOKENS)
        spaced = await tokenizers.encode(card, f" {word.lstrip()}", add_special_tokens=False, max_tokens=_MOST_TOKENS)
        words[tuple(plain)] = None
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            words[tuple(spaced)] = None
    return tuple(words)


async def check_named_tokens(request: GenerationParameters, card: ModelCard, tokenizers: Tokenizers) -> None:
    """Raises InvalidRequest: a parameter names a token that the model does not have."""
    for param, token_id in request.named_tokens:
        vocab_size = (await tokenizers.of(card)).vocab_size
        if token_id >= vocab_size:
            message = f"Token id {token_id} of {param!r} is outside the model's vocabulary of {vocab_size} tokens."
            raise InvalidRequest(message, param=param)
