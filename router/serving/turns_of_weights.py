"""Chooses, while a model is given other weights, by which of them a request is answered."""

from collections.abc import Sequence
from itertools import count

from router.text.tokenization import Tokenizers
from router.view import ModelCard


class TurnsOfWeights:
    """Units come to the new weights a few at a time. Each that is ready has its share of the requests, whose prompts
    are made as its weights have it.
    """

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._turns = count()

    def among(self, ready: Sequence[ModelCard]) -> ModelCard:
        """Returns that of one unit, of those whose tokenizer is here. `ready` has one for each unit."""
        able = [c for c in ready if not (self._tokenizers.is_loading(c) or self._tokenizers.has_failed(c))] or ready
        return able[next(self._turns) % len(able)]
