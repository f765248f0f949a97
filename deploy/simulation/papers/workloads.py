"""Requests like those of a paper's workload, from the length statistics that it gives."""

import heapq
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from deploy.simulation.papers.experiment_file import LengthSection, SessionsSection, WorkloadSection
from deploy.simulation.streams import RequestStream
from traces.record import TraceRecord

BLOCK_TOKENS = 64  # of the names of shared prefixes
_BLOCKS_PER_SESSION = 1 << 16
_SHARED = 0  # the session number of what all requests share
_BISECTIONS = 40


def workload_stream(
    workload: WorkloadSection, weights: Mapping[str, float], *, requests: int, rate_per_s: float, seed: int
) -> RequestStream:
    """Generates as many requests, with Poisson arrivals; models are drawn by weight, and a session keeps its own."""
    rng = np.random.default_rng(seed)
    if workload.sessions is None:
        drafts = _single_turns(workload, requests, rng)
    else:
        drafts = _turns(workload, workload.sessions, requests, rate_per_s, rng)
    models = list(weights)
    share = np.array([weights[m] for m in models])
    of_session = rng.choice(len(models), size=requests + 1, p=share / share.sum())
    arrivals_s = np.cumsum(rng.exponential(1 / rate_per_s, requests))
    records = tuple(
        TraceRecord(
            arrival_s=float(arrival_s),
            input_tokens=prompt_tokens,
            output_tokens=output_tokens,
            model=models[int(of_session[session % (requests + 1)])],
            session_id=str(session),
            prefix_block_hashes=_blocks(session, workload.shared_prefix_tokens, prompt_tokens, keeps_history),
        )
        for arrival_s, (session, prompt_tokens, output_tokens, keeps_history) in zip(arrivals_s, drafts, strict=True)
    )
    return RequestStream(
        name="generated",
        records=lambda: iter(records),
        block_tokens=BLOCK_TOKENS,
        count=len(records),
        span_s=records[-1].arrival_s,
    )


_Draft = tuple[int, int, int, bool]  # session, prompt tokens, output tokens, whether later turns repeat the prompt


def _single_turns(workload: WorkloadSection, requests: int, rng: np.random.Generator) -> Iterator[_Draft]:
    prompts, outputs = draw(workload.prompt_tokens, requests, rng), draw(workload.output_tokens, requests, rng)
    others = workload.others
    if others is not None:
        is_other = rng.random(requests) < others.share
        prompts = np.where(is_other, draw(others.prompt_tokens, requests, rng), prompts)
        outputs = np.where(is_other, draw(others.output_tokens, requests, rng), outputs)
    for session, (prompt, output) in enumerate(zip(prompts, outputs, strict=True), start=1):
        yield session, int(prompt) + workload.shared_prefix_tokens, int(output), False


def _turns(
    workload: WorkloadSection, sessions: SessionsSection, requests: int, rate_per_s: float, rng: np.random.Generator
) -> Iterator[_Draft]:
    """The order in which turns of many sessions come, if sessions start at their share of the rate."""
    first, later = draw(sessions.first_tokens, requests, rng), draw(workload.prompt_tokens, requests, rng)
    outputs = draw(workload.output_tokens, requests, rng)
    starts_s = np.cumsum(rng.exponential(sessions.mean_turns / rate_per_s, requests))
    agenda = [(float(start_s), session, 0) for session, start_s in enumerate(starts_s, start=1)]
    history: dict[int, int] = {}
    for index in range(requests):
        now_s, session, turn = heapq.heappop(agenda)
        new = int(first[index] if turn == 0 else later[index])
        prompt, output = history.get(session, workload.shared_prefix_tokens) + new, int(outputs[index])
        yield session, prompt, output, True
        if rng.random() < 1 - 1 / sessions.mean_turns:
            history[session] = prompt + output
            heapq.heappush(agenda, (now_s + float(rng.exponential(sessions.think_s)), session, turn + 1))


def _blocks(session: int, shared_tokens: int, prompt_tokens: int, keeps_history: bool) -> tuple[int, ...]:
    """Names of the prompt's blocks that others may share: the system prompt, and a conversation's own history."""
    shared = shared_tokens // BLOCK_TOKENS
    whole = -(-prompt_tokens // BLOCK_TOKENS)
    names = [_SHARED * _BLOCKS_PER_SESSION + place for place in range(min(shared, whole))]
    if keeps_history:
        names += [session * _BLOCKS_PER_SESSION + place for place in range(shared, whole)]
    return tuple(names)


def draw(lengths: LengthSection, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A log-normal whose mean is met after clipping: the median is searched on a large sample."""
    sample = np.exp(np.random.default_rng(0).normal(0, lengths.sigma, 20_000))
    low, high = float(lengths.min), float(lengths.max)
    for _ in range(_BISECTIONS):
        median = (low * high) ** 0.5
        if np.clip(sample * median, lengths.min, lengths.max).mean() < lengths.mean:
            low = median
        else:
            high = median
    drawn = np.exp(rng.normal(0, lengths.sigma, count)) * (low * high) ** 0.5
    rounded: npt.NDArray[np.int64] = np.clip(np.rint(drawn), lengths.min, lengths.max).astype(np.int64)
    return rounded
