"""Clients of a fleet in trouble: what each was answered, and what it would have been answered in peace."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx

MODELS = ("alpha", "beta", "gamma")
PROMPTS: Sequence[Sequence[int]] = tuple([7 + i, *range(20, 60)] for i in range(4))
MAX_TOKENS = 80
_CLIENTS = 12
_TIMEOUT_S = 150.0
_REFUSED_PAUSE_S = 0.1


@dataclass(slots=True)
class Answered:
    """`ends` counts finish reasons and error events: exactly one is right. `broken`: the connection broke. `silent_s`:
    the longest time without a token, from the request on.
    """

    model: str
    prompt: int
    text: str = ""
    ends: Counter[str] = field(default_factory=Counter)
    broken: str | None = None
    was_accepted: bool = True  # False: nobody listened
    ended_s: float = 0.0
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    answers: tuple[Answered, ...]
    expected: dict[tuple[str, int], str]
    max_tokens: int

    def lost(self) -> list[Answered]:
        """Without exactly one terminal answer."""
        return [a for a in self.answers if a.broken or sum(a.ends.values()) != 1]

    def longest_silence_s(self) -> float:
        return max(a.silent_s for a in self.answers)

    def broken(self) -> list[Answered]:
        return [a for a in self.answers if a.broken]

    def wrong(self) -> list[Answered]:
        """Finished, with other tokens than in peace."""
        return [a for a in self.answers if a.ends["length"] and a.text != self._in_peace(a)]

    def _in_peace(self, answered: Answered) -> str:
        """A token is a character."""
        return self.expected[answered.model, answered.prompt][: self.max_tokens]

    def refused(self) -> list[Answered]:
        """Answered with an error."""
        return [a for a in self.answers if a.ends and not a.ends["length"]]


class Load:
    """`prompts` are tokens."""

    def __init__(self, url: str, expected: dict[tuple[str, int], str], prompts: Sequence[Sequence[int]]) -> None:
        self._url = url
        self.expected = expected
        self._prompts = prompts

    @classmethod
    def calibrated(cls, url: str, prompts: Sequence[Sequence[int]] = PROMPTS) -> "Load":
        """In peace, and every prompt several times: also the other replica says the same."""

        async def all_of_them() -> list[Answered]:
            numbered = list(enumerate(prompts))
            async with _client() as http:
                asks = [_ask(http, url, m, i, p) for _ in range(3) for m in MODELS for i, p in numbered]
                return await asyncio.gather(*asks)

        answers = asyncio.run(all_of_them())
        expected = {(a.model, a.prompt): a.text for a in answers}
        assert all(a.ends == Counter(length=1) for a in answers), answers
        assert all(a.text == expected[a.model, a.prompt] for a in answers)
        assert len(set(expected.values())) > 1
        return cls(url, expected, prompts)

    def through(
        self,
        trouble: Callable[[], Awaitable[None]],
        *,
        after_s: float = 2.0,
        clients: int = _CLIENTS,
        max_tokens: int = MAX_TOKENS,
    ) -> Run:
        """Clients ask without a pause before, during and for `after_s` after the trouble, and each once more then."""
        return asyncio.run(self.during(trouble, after_s=after_s, clients=clients, max_tokens=max_tokens))

    async def during(
        self, trouble: Callable[[], Awaitable[None]], *, after_s: float, clients: int, max_tokens: int
    ) -> Run:
        answers: list[Answered] = []
        over = asyncio.Event()
        async with _client() as http, asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._keep_asking(http, number, max_tokens, over, answers))
            await asyncio.sleep(1.0)
            try:
                await trouble()
                await asyncio.sleep(after_s)
            finally:
                over.set()
        return Run(answers=tuple(answers), expected=self.expected, max_tokens=max_tokens)

    async def _keep_asking(
        self, http: httpx.AsyncClient, number: int, max_tokens: int, over: asyncio.Event, answers: list[Answered]
    ) -> None:
        turn, is_last = number, False
        while not is_last:
            is_last = over.is_set()
            model, prompt, request_id = MODELS[turn % len(MODELS)], turn % len(self._prompts), f"client-{number}-{turn}"
            tokens = self._prompts[prompt]
            answers.append(await _ask(http, self._url, model, prompt, tokens, max_tokens, request_id))
            turn += 1


def _client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=_TIMEOUT_S, limits=limits, trust_env=False)


def ask_once(url: str, model: str) -> Answered:
    async def one() -> Answered:
        async with _client() as http:
            return await _ask(http, url, model, 0, PROMPTS[0])

    return asyncio.run(one())


async def _ask(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    prompt: int,
    tokens: Sequence[int],
    max_tokens: int = MAX_TOKENS,
    request_id: str = "",
) -> Answered:
    answered = Answered(model, prompt)
    body = {
        "model": model,
        "prompt": list(tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"x-request-id": request_id} if request_id else {}
    began_s = time.monotonic()
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                answered.ends[f"status {response.status_code}"] += 1
                answered.text = (await response.aread()).decode()
            else:
                await _read(response, answered, began_s)
    except httpx.ConnectError as error:
        answered.broken, answered.was_accepted = f"ConnectError: {error}", False
        await asyncio.sleep(_REFUSED_PAUSE_S)
    except httpx.HTTPError as error:
        answered.broken = f"{type(error).__name__}: {error}"
    answered.ended_s = time.monotonic()
    return answered


async def _read(response: httpx.Response, answered: Answered, heard_s: float) -> None:
    async for line in response.aiter_lines():
        now_s = time.monotonic()
        answered.silent_s = max(answered.silent_s, now_s - heard_s)
        heard_s = now_s
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            answered.ends["error"] += 1
            continue
        for choice in event["choices"]:
            answered.text += choice["text"]
            if choice["finish_reason"] is not None:
                answered.ends[choice["finish_reason"]] += 1
