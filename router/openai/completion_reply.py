"""POST /v1/completions: the reply."""

from collections.abc import Sequence
from typing import Any

from pdmux_actor.serving.frames import TokenLogprob
from router.generation import Output
from router.openai.reply import LOWEST_LOGPROB, Choice, EventEncoder, ReplyHead, Usage, document, finish_name


class CompletionReply:
    """`echoes` is the text to put before each choice, empty unless `echo` was asked for. `prompt_token_ids` are
    those of each choice, where the reply is to carry token ids.
    """

    def __init__(
        self,
        head: ReplyHead,
        *,
        with_logprobs: bool,
        usage_is_asked: bool,
        echoes: Sequence[str],
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._head = head
        self._with_logprobs = with_logprobs
        self._encoder = EventEncoder(head, "text_completion", usage_is_asked=usage_is_asked)
        self._echoes = echoes
        self._prompt_token_ids = prompt_token_ids
        self._offsets: dict[int, int] = {}

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        text = output.text
        is_first = index not in self._offsets
        if is_first:
            self._offsets[index] = len(self._echoes[index])
            text = self._echoes[index] + text
        logprobs = None
        if self._with_logprobs:
            logprobs, self._offsets[index] = completion_logprobs(output.logprobs, self._offsets[index])
        finish = None if output.finish is None else finish_name(output.finish)
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        if self._prompt_token_ids is not None:
            choice["token_ids"] = output.token_ids
            if is_first:
                choice["prompt_token_ids"] = self._prompt_token_ids[index]
        return self._encoder.choice(choice, usage)

    def usage_event(self, usage: Usage) -> bytes:
        return self._encoder.usage(usage)

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies: list[dict[str, Any]] = []
        for index, choice in enumerate(choices):
            assert choice.finish is not None, "a document is made of finished choices"
            echo = self._echoes[index]
            bodies.append(
                {
                    "index": index,
                    "text": echo + choice.text,
                    "logprobs": completion_logprobs(choice.logprobs, len(echo))[0] if self._with_logprobs else None,
                    "finish_reason": finish_name(choice.finish),
                }
            )
            if self._prompt_token_ids is not None:
                bodies[-1] |= {"prompt_token_ids": self._prompt_token_ids[index], "token_ids": choice.token_ids}
        return document(self._head, "text_completion", bodies, usage)


def completion_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """The legacy shape, and the offset after the last token. Offsets count characters of the reply's text."""
    offsets = []
    for entry in logprobs:
        offsets.append(offset)
        offset += len(entry.token)
    body = {
        "tokens": [entry.token for entry in logprobs],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in logprobs],
        "top_logprobs": [
            {top.token: max(top.logprob, LOWEST_LOGPROB) for top in entry.top} or None for entry in logprobs
        ],
        "text_offset": offsets,
    }
    return body, offset
