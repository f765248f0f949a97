"""Open-loop replay against an OpenAI-compatible endpoint: requests leave at their times, whatever the answers do."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from traces.completion_stream import CompletionStream, error_message
from traces.errors import BadParameter
from traces.outcome import Ending, RequestOutcome
from traces.prompts import DEFAULT_VOCAB_SIZE, FIRST_TOKEN_ID, prompt_token_ids
from traces.record import TraceRecord

_REJECTED_STATUSES = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shot:
    """A request ready to be sent."""

    index: int
    record: TraceRecord
    model: str
    requested_tokens: int
    body: bytes


async def replay(
    records: Sequence[TraceRecord],
    *,
    url: str,
    timeout_s: float,
    api_key: str | None = None,
    block_tokens: int | None = None,
    vocab_sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    extra_body: Mapping[str, object] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[RequestOutcome]:
    """Sends request i `records[i].arrival_s` seconds after the start, each on a connection of its own.

    Prompts are token ids of exactly the recorded length, drawn from `seed`; `block_tokens` is the trace's. The answer
    is streamed and has the recorded number of tokens (`ignore_eos`; a record of 0 output tokens asks for 1).
    `vocab_sizes` bounds the ids per model. `extra_body` adds to or replaces fields of every request body. A request
    without a terminal answer `timeout_s` after it was sent is lost. Proxies in the environment are not used. Returns
    the outcomes in the order of `records`; `on_outcome` hears of each as it ends, should the rest be interrupted.

    Raises:
        BadParameter: an argument is not usable, a record has no model, or it names blocks and `block_tokens` is not
            given. Nothing has been sent then.
    """
    endpoint = completions_url(url)
    if not 0 < timeout_s < float("inf"):
        raise BadParameter(name="timeout_s", value=timeout_s, remedy="give a finite number of seconds above 0")
    _check(records, block_tokens, vocab_sizes or {}, extra_body or {})
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"

    def prepare(index: int) -> _Shot:
        return _prepare(records[index], index, block_tokens, vocab_sizes or {}, seed, extra_body or {})

    # No limit on connections: a limit would make requests wait for earlier answers. No connection is used twice: a
    # server may close an idle one just as the next request leaves, which would look like a lost request.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    client = httpx.AsyncClient(
        transport=transport or httpx.AsyncHTTPTransport(limits=limits), timeout=None, headers=headers
    )
    async with client:
        run = _Run(client, endpoint, timeout_s, on_progress, on_outcome, total=len(records))
        return await run.all([(record.arrival_s, index) for index, record in enumerate(records)], prepare)


def completions_url(url: str) -> str:
    """The endpoint under a server's base URL.

    >>> completions_url("http://localhost:8000"), completions_url("http://localhost:8000/v1/")
    ('http://localhost:8000/v1/completions', 'http://localhost:8000/v1/completions')
    """
    remedy = "give the server's base URL, such as http://127.0.0.1:8000"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadParameter(name="url", value=url, remedy=remedy) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadParameter(name="url", value=url, remedy=remedy)
    base = url.rstrip("/")
    return f"{base}/completions" if base.endswith("/v1") else f"{base}/v1/completions"


def _check(
    records: Sequence[TraceRecord],
    block_tokens: int | None,
    vocab_sizes: Mapping[str, int],
    extra_body: Mapping[str, object],
) -> None:
    """Everything that could stop the replay half-way."""
    for record in records:
        if record.model is None:
            raise BadParameter(name="records", value="a record without a model", remedy="use assign_models first")
        if record.prefix_block_hashes and (block_tokens is None or block_tokens < 1):
            raise BadParameter(name="block_tokens", value=block_tokens, remedy="give the trace's block_tokens")
    if min(vocab_sizes.values(), default=DEFAULT_VOCAB_SIZE) <= FIRST_TOKEN_ID:
        raise BadParameter(
            name="vocab_sizes", value=dict(vocab_sizes), remedy=f"give more than {FIRST_TOKEN_ID} for each model"
        )
    try:
        msgspec.json.encode(extra_body)
    except TypeError as error:
        raise BadParameter(name="extra_body", value=dict(extra_body), remedy=f"give JSON values ({error})") from error


def _prepare(
    record: TraceRecord,
    index: int,
    block_tokens: int | None,
    vocab_sizes: Mapping[str, int],
    seed: int,
    extra_body: Mapping[str, object],
) -> _Shot:
    assert record.model is not None
    vocab_size = vocab_sizes.get(record.model, DEFAULT_VOCAB_SIZE)
    requested_tokens = max(1, record.output_tokens)
    body = {
        "model": record.model,
        "prompt": prompt_token_ids(record, index=index, block_tokens=block_tokens, seed=seed, vocab_size=vocab_size),
        "max_tokens": requested_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra_body,
    }
    return _Shot(
        index=index,
        record=record,
        model=record.model,
        requested_tokens=requested_tokens,
        body=msgspec.json.encode(body),
    )


class _Run:
    def __init__(
        self,
        client: httpx.AsyncClient,
        endpoint: str,
        timeout_s: float,
        on_progress: Callable[[int, int], None] | None,
        on_outcome: Callable[[RequestOutcome], None] | None,
        total: int,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._on_outcome = on_outcome
        self._total = total
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def _now_s(self) -> float:
        return self._loop.time() - self._start_s

    async def all(self, schedule: list[tuple[float, int]], prepare: Callable[[int], _Shot]) -> list[RequestOutcome]:
        tasks: dict[int, asyncio.Task[RequestOutcome]] = {}
        async with asyncio.TaskGroup() as group:
            for arrival_s, index in sorted(schedule):
                shot = prepare(index)  # before the wait, so that drawing a long prompt delays nothing
                await asyncio.sleep(max(0.0, arrival_s - self._now_s()))
                tasks[index] = group.create_task(self._one(shot))
        return [tasks[index].result() for index in range(self._total)]

    async def _one(self, shot: _Shot) -> RequestOutcome:
        stream = CompletionStream()
        sent_s = self._now_s()
        status_code: int | None = None
        problem: str | None = None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", self._endpoint, content=shot.body) as response,
            ):
                status_code = response.status_code
                if status_code == httpx.codes.OK:
                    async for data in response.aiter_raw():
                        stream.feed(data, self._now_s())
                    problem = "the stream ended without a finish reason"
                else:
                    problem = error_message(await response.aread())
        except TimeoutError:
            problem = f"no terminal answer within {self._timeout_s:g} s"
        except httpx.RequestError as error:
            problem = f"connection: {type(error).__name__}: {error}"
        outcome = self._outcome(shot, stream, sent_s, status_code, problem)
        self._done += 1
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)
        return outcome

    def _outcome(
        self, shot: _Shot, stream: CompletionStream, sent_s: float, status_code: int | None, problem: str | None
    ) -> RequestOutcome:
        ending = _ending(stream, status_code)
        return RequestOutcome(
            index=shot.index,
            model=shot.model,
            ending=ending,
            scheduled_s=shot.record.arrival_s,
            sent_s=sent_s,
            end_s=stream.finished_s if stream.finished_s is not None else self._now_s(),
            ttft_s=None if stream.first_token_s is None else stream.first_token_s - sent_s,
            gaps_s=tuple(stream.gaps_s),
            input_tokens=shot.record.input_tokens,
            requested_tokens=shot.requested_tokens,
            output_tokens=stream.output_tokens,
            finish_reason=stream.finish_reason,
            status_code=status_code,
            error=None if ending is Ending.FINISHED else stream.error or problem,
        )


def _ending(stream: CompletionStream, status_code: int | None) -> Ending:
    if stream.finished:
        return Ending.FINISHED
    if stream.error is not None:
        return Ending.FAILED
    if status_code is None or status_code == httpx.codes.OK:
        return Ending.LOST
    return Ending.REJECTED if status_code in _REJECTED_STATUSES else Ending.FAILED
