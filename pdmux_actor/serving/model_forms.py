"""Compiles forms of outputs for the models of an engine process; what it needs is read when a model is first asked."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdmux_actor.errors import InvalidStructuredOutput, ModelLoadError
from pdmux_actor.messages import GenerateRequest, StructuredOutput
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.output_constraint import OutputConstraint
from pdmux_actor.serving.commands import LoadModelCommand
from pdmux_actor.serving.detokenizer import Vocabulary
from pdmux_actor.serving.vocabulary_source import load_vocabulary


class _Compiler(Protocol):
    def constraint(self, form: StructuredOutput, prompt_tokens: int, token_ids: Sequence[int]) -> OutputConstraint: ...


@dataclass(slots=True)
class _Offer:
    command: LoadModelCommand
    info: ModelInfo
    lock: threading.Lock = field(default_factory=threading.Lock)
    compiler: _Compiler | None = None


class ModelForms:
    """Thread-safe."""

    def __init__(self) -> None:
        self._offers: dict[str, _Offer] = {}

    def offer(self, command: LoadModelCommand, info: ModelInfo) -> None:
        """The model was loaded, or has woken. An adapter has its base's vocabulary."""
        base = None if command.base is None else self._offers.get(command.base)
        self._offers[info.model] = base or _Offer(command, info)

    def forget(self, model: str) -> None:
        """It has left. What its forms were compiled with takes a hundred megabytes and more."""
        self._offers.pop(model, None)

    def compile(self, request: GenerateRequest, form: StructuredOutput) -> OutputConstraint:
        """Slow. Raises InvalidStructuredOutput."""
        offer = self._offers.get(request.model)
        if offer is None:
            raise InvalidStructuredOutput(reason=f"model {request.model!r} is not on this unit")
        with offer.lock:
            if offer.compiler is None:
                offer.compiler = _compiler(offer)
        known = (*request.prompt_token_ids, *request.output_token_ids)
        return offer.compiler.constraint(form, len(request.prompt_token_ids), known)


def _compiler(offer: _Offer) -> _Compiler:
    if not offer.info.eos_token_ids:
        raise InvalidStructuredOutput(reason=f"model {offer.info.model!r} names no end token: no output could end")
    try:
        vocabulary = load_vocabulary(offer.command)
    except ModelLoadError as error:
        raise InvalidStructuredOutput(reason=str(error)) from error
    from pdmux_actor.executor.structured_output import FormCompiler  # seconds, and few engines need it

    return FormCompiler(
        _texts(vocabulary, offer.info.spec.vocab_size),
        offer.info.eos_token_ids,
        vocab_size=offer.info.spec.vocab_size,
    )


def _texts(vocabulary: Vocabulary, vocab_size: int) -> list[bytes]:
    """The bytes that clients see of each token."""
    tokens = vocabulary.token_bytes
    return [tokens.of(token_id) if tokens.has_text(token_id) else b"" for token_id in range(vocab_size)]
