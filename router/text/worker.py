"""The process that works on text for one gateway: it can be killed, a gateway's event loop cannot. Its arguments are
the number of an inherited socket and how much nicer than the gateway it is.

Calls are answered in order; tokenizers load on a thread of their own beside them. It ends with the gateway: at
end-of-file on the socket, or by the kernel's parent-death signal.
"""

import logging
import os
import resource
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import msgspec

from pdmux_actor.serving.frames import LENGTH, framed
from pdmux_actor.serving.parent_death import die_with_parent
from router.text.calls import (
    Decoded,
    DecodeTokens,
    EncodeChat,
    Encoded,
    EncodeText,
    LoadTokenizer,
    NameTokens,
    OpenReply,
    ReadReply,
    ReplyCall,
    ReplyRead,
    ReplyUnknown,
    TextAnswer,
    TextCall,
    TextRefused,
    TokenizerCall,
    TokenizerFailed,
    TokenizerGone,
    TokenizerKey,
    TokenizerLoaded,
    TokensNamed,
)
from router.text.encoder import PromptEncoder, TemplateRefusal, load_encoder
from router.text.reply_parser import ReplyParser
from router.text.shared_tokenizers import SharedTokenizers

_MAX_TOKENIZERS = 64
_MAX_REPLIES = 4096
_PROMPT_END_CHARACTERS = 512
_MAX_ADDRESS_SPACE_BYTES = 16 * 1024**3  # what a template multiplies does not take the machine's memory


class _TooSlow(BaseException):
    """Not an Exception, for template engines catch those."""


Alarm = Callable[[float], None]
"""Raises `_TooSlow` in the thread that asked after so many seconds; 0 takes it back."""


def set_alarm(after_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after_s)


class TextWorker:
    """Answers calls, in whichever process it lives. `alarm` is None where no signal may be used."""

    def __init__(self, alarm: Alarm | None = None) -> None:
        self._alarm = alarm
        self._encoders: OrderedDict[TokenizerKey, PromptEncoder] = OrderedDict()
        self._shared = SharedTokenizers()
        self._changing = Lock()  # tokenizers load on another thread
        self._replies: OrderedDict[str, ReplyParser] = OrderedDict()

    def load(self, call: LoadTokenizer) -> TokenizerLoaded | TokenizerFailed:
        try:
            encoder = load_encoder(call.tokenizer.source, call.tokenizer.revision, self._shared)
        except Exception as error:  # a tokenizer's loader raises whatever its files provoke
            return TokenizerFailed(call.call, f"{type(error).__name__}: {error}"[:2000])
        with self._changing:
            self._encoders[call.tokenizer] = encoder
            self._forget_oldest()
        return TokenizerLoaded(
            call.call,
            encoder.vocab_size,
            encoder.template_variables,
            encoder.characters_per_token,
            encoder.response_template,
            encoder.callless_template,
            encoder.marks_are_special,
            encoder.call_marks,
            encoder.before_answer,
            encoder.reranker,
            encoder.unserved_embeddings,
            encoder.declares_embeddings,
            encoder.efforts,
        )

    def _forget_oldest(self) -> None:
        """Until few enough differ: what models share counts once."""
        while len(digests := self._digests()) > _MAX_TOKENIZERS:
            self._encoders.popitem(last=False)
        self._shared.keep(digests)

    def _digests(self) -> set[str]:
        return {encoder.digest or f"{key.source} {key.revision}" for key, encoder in self._encoders.items()}

    def answer(self, call: TokenizerCall | ReplyCall) -> TextAnswer:
        match call:
            case OpenReply():
                return self._open(call)
            case ReadReply():
                return self._read(call)
            case _:
                return self._tokenize(call)

    def _open(self, call: OpenReply) -> TextAnswer:
        try:
            self._replies[call.reply] = ReplyParser(call.template, call.prompt_end, call.tools)
        except ValueError as error:
            return TextRefused(call.call, f"the response template of the checkpoint is none: {error}"[:500])
        if len(self._replies) > _MAX_REPLIES:
            self._replies.popitem(last=False)
        return ReplyRead(call.call, [])

    def _read(self, call: ReadReply) -> TextAnswer:
        reply = self._replies.get(call.reply)
        if reply is None:
            return ReplyUnknown(call.call)
        self._replies.move_to_end(call.reply)
        last = len(call.texts) - 1
        try:
            with self._limited(call.timeout_s):
                parts = [reply.feed(text, ends=call.ends and place == last) for place, text in enumerate(call.texts)]
        except _TooSlow:
            del self._replies[call.reply]
            return TextRefused(call.call, "to read it took too long", too_slow=True)
        if call.ends:
            del self._replies[call.reply]
        return ReplyRead(call.call, parts)

    def _tokenize(self, call: TokenizerCall) -> TextAnswer:
        with self._changing:
            encoder = self._encoders.get(call.tokenizer)
            if encoder is None:
                return TokenizerGone(call.call)
            self._encoders.move_to_end(call.tokenizer)
        try:
            match call:
                case EncodeChat():
                    with self._limited(call.template_timeout_s):
                        text = encoder.render_chat(
                            call.messages,
                            call.tools,
                            call.template_arguments,
                            add_generation_prompt=call.add_generation_prompt,
                            continue_final_message=call.continue_final_message,
                        )
                    return self._encoded(encoder, call, text, add_special_tokens=call.add_special_tokens)
                case EncodeText():
                    return self._encoded(encoder, call, call.text, add_special_tokens=call.add_special_tokens)
                case DecodeTokens():
                    text = encoder.decode(call.token_ids, skip_special_tokens=call.skip_special_tokens)
                    return Decoded(call.call, text)
                case NameTokens():
                    return TokensNamed(call.call, encoder.names(call.token_ids))
        except TemplateRefusal as refusal:
            return TextRefused(call.call, str(refusal)[:500])
        except _TooSlow:
            return TextRefused(call.call, "it did not come to an end", too_slow=True)
        except (MemoryError, RecursionError, OverflowError) as error:
            return TextRefused(call.call, f"{type(error).__name__} while working on the text")

    @contextmanager
    def _limited(self, limit_s: float) -> Iterator[None]:
        if self._alarm is None:
            yield
            return
        self._alarm(limit_s)
        try:
            yield
        finally:
            self._alarm(0)

    @staticmethod
    def _encoded(
        encoder: PromptEncoder, call: EncodeChat | EncodeText, text: str, *, add_special_tokens: bool
    ) -> Encoded:
        per_token = encoder.characters_per_token
        if per_token is not None and len(text) > call.max_tokens * per_token:
            return Encoded(call.call, -(-len(text) // per_token), [])
        ids = encoder.encode(text, add_special_tokens=add_special_tokens)
        return Encoded(call.call, len(ids), ids if len(ids) <= call.max_tokens else [], text[-_PROMPT_END_CHARACTERS:])


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the gateway decides
    signal.signal(signal.SIGALRM, _on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE_BYTES, _MAX_ADDRESS_SPACE_BYTES))
    sys.modules["torch"] = None  # type: ignore[assignment]  # how to say "not installed": no tokenizer needs it
    logging.disable(logging.WARNING)  # among others, that there is no torch
    os.nice(int(arguments[1]))
    connection = socket.socket(fileno=int(arguments[0]))
    _serve(connection, TextWorker(set_alarm))


def _serve(connection: socket.socket, worker: TextWorker) -> None:
    decoder: msgspec.json.Decoder[TextCall] = msgspec.json.Decoder(TextCall)
    sending = Lock()

    def send(answer: TextAnswer) -> None:
        with sending:
            connection.sendall(framed(answer))

    with connection.makefile("rb") as calls, ThreadPoolExecutor(1, "load-tokenizer") as loader:
        while header := calls.read(LENGTH.size):
            call = decoder.decode(calls.read(*LENGTH.unpack(header)))
            if isinstance(call, LoadTokenizer):
                loader.submit(lambda load: send(worker.load(load)), call)
            else:
                send(worker.answer(call))
        os._exit(0)  # the gateway is gone: nobody waits for a load


def _on_alarm(_signal: int, _frame: object) -> None:
    raise _TooSlow


if __name__ == "__main__":
    main(sys.argv[1:])
