"""From messages and text to token ids.

transformers takes seconds to import, so it is imported with the first tokenizer, in a worker thread.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pdmux_actor.models.checkpoint import is_shape_only
from pdmux_actor.models.demo_tokenizer import CHAT_TEMPLATE, SHAPE_ONLY_VOCABULARY, build_demo_tokenizer
from router.errors import InvalidRequest, TokenizerUnavailable
from router.view import ModelCard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_INLINE_CHARACTERS = 8192  # encoding this much takes about as long as a hop to a thread and back


class PromptEncoder:
    """One model's tokenizer and chat template. Safe to use from several threads: nothing in it changes."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        # A slow tokenizer has no backend; every architecture we serve has a fast one. The backend's `encode` is used
        # directly because the wrapper's own sets truncation on the shared backend, which is not thread-safe.
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)

    def render_chat(self, messages: Sequence[Mapping[str, str]], template_arguments: Mapping[str, Any]) -> str:
        """Raises:
        InvalidRequest: the model has no chat template, or the template refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions with a prompt in the model's own format.",
                param="messages",
                code="no_chat_template",
            )
        import jinja2  # not at the top: the template engine is transformers' and comes with it

        arguments = {"tokenize": False, "add_generation_prompt": True, **template_arguments}
        try:
            rendered = self._tokenizer.apply_chat_template([dict(m) for m in messages], **arguments)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise InvalidRequest(message[:500], param="messages", code="chat_template_error") from error
        if not isinstance(rendered, str):
            message = "These chat_template_kwargs keep the template from rendering text."
            raise InvalidRequest(message, param="chat_template_kwargs")
        return rendered

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text


class Tokenizers:
    """Encoders by model source, loaded when first asked for; the least recently used goes first."""

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._encoders: OrderedDict[tuple[str, str | None], asyncio.Task[PromptEncoder]] = OrderedDict()
        self._preloads: set[asyncio.Future[PromptEncoder]] = set()
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        # One at a time: transformers fills its modules lazily, and two threads that import it at once see half of it.
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load-tokenizer")

    async def of(self, card: ModelCard) -> PromptEncoder:
        """Raises:
        TokenizerUnavailable: the source has no usable tokenizer, or the gateway cannot reach it.
        """
        key = (card.source, card.revision)
        task = self._encoders.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._encoders[key] = asyncio.create_task(self._load(card))
            if len(self._encoders) > self._max_entries:
                self._encoders.popitem(last=False)
        self._encoders.move_to_end(key)
        return await asyncio.shield(task)  # a client that leaves does not stop the load for the others

    def preload(self, card: ModelCard) -> None:
        """Starts loading; a failure is logged and tried again when a request asks."""
        task = asyncio.ensure_future(self.of(card))
        self._preloads.add(task)
        task.add_done_callback(self._preloaded)

    def is_loading(self, card: ModelCard) -> bool:
        task = self._encoders.get((card.source, card.revision))
        return task is not None and not task.done()

    def _preloaded(self, task: asyncio.Future[PromptEncoder]) -> None:
        self._preloads.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log what `_load` has logged

    async def encode(self, encoder: PromptEncoder, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= _INLINE_CHARACTERS:
            return encoder.encode(text, add_special_tokens=add_special_tokens)
        return await self._in_thread(lambda: encoder.encode(text, add_special_tokens=add_special_tokens))

    async def render_chat(
        self, encoder: PromptEncoder, messages: Sequence[Mapping[str, str]], template_arguments: Mapping[str, Any]
    ) -> str:
        if sum(len(m["content"]) for m in messages) <= _INLINE_CHARACTERS:
            return encoder.render_chat(messages, template_arguments)
        return await self._in_thread(lambda: encoder.render_chat(messages, template_arguments))

    def close(self) -> None:
        for task in self._encoders.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _load(self, card: ModelCard) -> PromptEncoder:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._loader, lambda: _load_encoder(card.source, card.revision))
        except Exception as error:  # a tokenizer's loader raises whatever its files provoke
            logger.exception("tokenizer does not load", extra={"model": card.model, "source": card.source})
            raise TokenizerUnavailable(model=card.model, reason=str(error)) from error

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _load_encoder(source: str, revision: str | None) -> PromptEncoder:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # seconds; see the module docstring

    if is_shape_only(Path(source)):
        tokenizer = build_demo_tokenizer(SHAPE_ONLY_VOCABULARY)
        return PromptEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE))
    return PromptEncoder(AutoTokenizer.from_pretrained(source, revision=revision))
