"""POST /v1/completions: the reply."""

from collections.abc import Sequence
from typing import Any

from pdmux_actor.serving.frames import PromptToken, TokenLogprob
from router.errors import RouterError
from router.generation import Output
from router.openai.completions import CompletionRequest
from router.openai.prompt_logprobs import (
    LOWEST_LOGPROB,
    begins_inside,
    by_text,
    echoed_logprobs,
    num_characters,
    prompt_logprobs,
)
from router.openai.reply import Choice, EventEncoder, ReplyHead, Usage, document, finish_name


class CompletionReply:
    """`echoes` is the text to put before each choice, empty unless `echo` was asked for. `prompt_token_ids` are
    those of each choice, where the reply is to carry token ids.
    """

    def __init__(
        self,
        head: ReplyHead,
        request: CompletionRequest,
        *,
        echoes: Sequence[str],
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._head = head
        self._request = request
        self._encoder = EventEncoder(head, "text_completion", usage_is_asked=request.include_usage)
        self._echoes = echoes
        self._prompt_token_ids = prompt_token_ids
        self._offsets: dict[int, int] = {}

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        text, echo = output.text, ""
        is_first = index not in self._offsets
        if is_first:
            echo = self._echoes[index]
            self._offsets[index] = len(echo)
        logprobs = None
        if self._request.logprobs is not None:
            logprobs, self._offsets[index] = completion_logprobs(output.logprobs, self._offsets[index])
            logprobs = self._with_prompt(output.prompt, echo, logprobs)
        finish = None if output.finish is None else finish_name(output.finish)
        choice = {"index": index, "text": echo + text, "logprobs": logprobs, "finish_reason": finish}
        choice["stop_reason"] = output.stop_reason
        if self._prompt_token_ids is not None:
            choice["token_ids"] = output.token_ids
            if is_first:
                choice["prompt_token_ids"] = self._prompt_token_ids[index]
        return self._encoder.choice(choice, usage)

    def usage_event(self, usage: Usage) -> bytes:
        return self._encoder.usage(usage)

    def failed_event(self, error: RouterError) -> bytes:
        return b""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        shown = best_choices(choices, self._request.num_choices, self._request.num_shown)
        bodies = [self._body(place, shown_as, choices[place]) for shown_as, place in enumerate(shown)]
        return document(self._head, "text_completion", bodies, usage)

    def _body(self, place: int, index: int, choice: Choice) -> dict[str, Any]:
        assert choice.finish is not None, "a document is made of finished choices"
        echo, logprobs = self._echoes[place], None
        if self._request.logprobs is not None:
            logprobs = self._with_prompt(choice.prompt, echo, completion_logprobs(choice.logprobs, len(echo))[0])
        body: dict[str, Any] = {
            "index": index,
            "text": echo + choice.text,
            "logprobs": logprobs,
            "finish_reason": finish_name(choice.finish),
            "stop_reason": choice.stop_reason,
        }
        if self._prompt_token_ids is not None:
            body |= {"prompt_token_ids": self._prompt_token_ids[place], "token_ids": choice.token_ids}
        if self._request.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(choice.prompt, self._request.prompt_logprobs)
        return body

    def _with_prompt(self, prompt: Sequence[PromptToken], echo: str, logprobs: dict[str, Any]) -> dict[str, Any]:
        if not (prompt and self._request.echo):
            return logprobs
        before = echoed_logprobs(prompt, echo, self._request.logprobs or 0)
        return {name: before[name] + values for name, values in logprobs.items()}


def best_choices(choices: Sequence[Choice], generated: int, shown: int) -> list[int]:
    """Places of the `shown` choices of each prompt, of the `generated` that it has one after the other. As OpenAI's
    `best_of` has it: those of the highest log-probability per token, the highest first.
    """
    if generated == shown:
        return list(range(len(choices)))

    def mean(place: int) -> float:
        logprobs = [one.logprob for one in choices[place].logprobs]
        return sum(logprobs) / len(logprobs) if logprobs else float("-inf")

    groups = [range(first, first + generated) for first in range(0, len(choices), generated)]
    return [place for group in groups for place in sorted(group, key=mean, reverse=True)[:shown]]


def completion_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """The legacy shape, and the offset after the last token. Offsets count characters of the reply's text: a token that
    begins inside one has its offset.
    """
    offsets = []
    for entry in logprobs:
        offsets.append(offset - begins_inside(entry.bytes))
        offset += num_characters(entry.bytes)
    body = {
        "tokens": [entry.token for entry in logprobs],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in logprobs],
        "top_logprobs": [by_text((top.token, top.logprob) for top in entry.top) for entry in logprobs],
        "text_offset": offsets,
    }
    return body, offset
