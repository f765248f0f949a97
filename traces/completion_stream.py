"""Reads a streamed completion from bytes. Knows no sockets and no clock."""

import msgspec

_FAILED_REASONS = frozenset({"error", "abort"})


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


class ErrorBody(msgspec.Struct):
    """An error answer in OpenAI's shape."""

    error: _Error | str


def error_message(body: bytes) -> str:
    """Returns what an error answer says, in whatever shape it comes.

    >>> error_message(b'{"error": {"message": "no such model", "type": "x"}}'), error_message(b"<html>")
    ('no such model', '<html>')
    """
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace")
    return error if isinstance(error, str) else error.message


class CompletionStream:
    r"""Holds what has been received of one streamed answer (server-sent events, one JSON object per data line).

    >>> stream = CompletionStream()
    >>> stream.feed(b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n', 1.0)
    >>> stream.feed(b'\ndata: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\ndata: [DONE]\n', 1.5)
    >>> stream.first_token_s, stream.gaps_s, stream.finish_reason, stream.output_tokens
    (1.0, [0.5], 'length', 2)
    """

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self.gaps_s: list[float] = []
        self.finish_reason: str | None = None
        self.finished_s: float | None = None
        self.error: str | None = None
        self._last_token_s = 0.0
        self._textless_end_s: float | None = None
        self._usage_tokens: int | None = None
        self._token_chunks = 0
        self._pending = b""
        self._decoder = msgspec.json.Decoder(_Chunk)

    @property
    def output_tokens(self) -> int:
        """The server's count if it sent one, else the chunks with text."""
        return self._token_chunks if self._usage_tokens is None else self._usage_tokens

    @property
    def finished(self) -> bool:
        """The answer is complete and well: later trouble on the connection does not matter."""
        return self.finish_reason is not None and self.error is None

    def feed(self, data: bytes, now_s: float) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):  # else an empty line, a comment or a field we do not use
                self._on_data(line[5:].strip(), now_s)

    def _on_data(self, payload: bytes, now_s: float) -> None:
        if payload == b"[DONE]" or self.error is not None:
            return
        try:
            chunk = self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            self.error = f"a chunk is not a completion ({error}): {payload[:80].decode(errors='replace')}"
            return
        if chunk.error is not None:
            self.error = chunk.error if isinstance(chunk.error, str) else chunk.error.message
        if chunk.usage is not None:
            self._usage_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self._on_choice(choice, now_s)
        if self._textless_end_s is not None and self._usage_tokens == self._token_chunks + 1:
            self._on_token(self._textless_end_s)  # each chunk before it had one token: it had the last one
            self._textless_end_s = None

    def _on_choice(self, choice: _Choice, now_s: float) -> None:
        # Text can be empty for a token too: half a character, or a special token. The closing chunk may carry none.
        if choice.text or choice.finish_reason is None:
            self._on_token(now_s)
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            self.finished_s = now_s
            if self.first_token_s is None:  # all of its tokens were without text
                self.first_token_s = now_s
            elif not choice.text:
                self._textless_end_s = now_s
            if choice.finish_reason in _FAILED_REASONS:
                self.error = f"the server ended it with finish_reason={choice.finish_reason!r}"

    def _on_token(self, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        else:
            self.gaps_s.append(now_s - self._last_token_s)
        self._last_token_s = now_s
        self._token_chunks += 1
