"""Workloads shaped as MuxWise Table 1, scaled to a small machine: all lengths divided by one number per workload.

Means, minima and maxima are the table's, in its tokens. Two of its rows mix definitions (their input means leave the
reused part out or leave it in); here an input is always what is new plus what is reused: Conversation 7,538 + 4,496,
Tool&agent 3,691 + 4,905. Outputs have a floor of 2 tokens, since a request without a gap tells nothing of gaps: LooGLE
(30,000 in, 15 out) cannot keep its ratio at any scale that a CPU can bear.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
from load.request_times import TimedRequest

from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo

MAX_MODEL_LEN = 4096
_VOCABULARY = 600
_LEAST_TURN_DISTANCE = 6  # arrivals between two turns of one conversation: the first should be answered by then
_OPEN_CONVERSATIONS = 12
_LONGEST_TOKENS = MAX_MODEL_LEN - 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal with this mean before it is clipped to [low, high]."""

    mean: float
    low: float
    high: float
    sigma: float

    def draw(self, rng: np.random.Generator, count: int, *, divided_by: float, floor: int) -> list[int]:
        """Drawn at evenly spaced quantiles in random order, so that even few requests have the mean they should."""
        quantiles = (rng.permutation(count) + rng.random(count)) / count
        location = math.log(self.mean) - self.sigma**2 / 2
        normal = np.array([_normal_quantile(q) for q in quantiles])
        drawn = np.clip(np.exp(location + self.sigma * normal), self.low, self.high) / divided_by
        return [max(floor, int(n)) for n in np.rint(drawn)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`system_tokens` begin every prompt; `continued` is the share of requests that are a later turn of a conversation,
    whose prompt begins with the whole prompt of the turn before.
    """

    name: str
    new_input: Lengths
    output: Lengths
    scale: float
    system_tokens: int = 0
    continued: float = 0.0

    @property
    def mean_context_tokens(self) -> int:
        """A typical context of a decoding sequence, in scaled tokens."""
        reused = max(self.system_tokens, self.continued * self.new_input.mean / (1 - self.continued))
        return int((self.new_input.mean + reused + self.output.mean / 2) / self.scale)

    @property
    def mean_new_tokens(self) -> float:
        return self.new_input.mean / self.scale

    @property
    def mean_output_tokens(self) -> float:
        return max(2.0, self.output.mean / self.scale)


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            Workload(name="sharegpt", scale=4, new_input=Lengths(226, 4, 1024, 0.9), output=Lengths(195, 4, 1838, 0.9)),
            Workload(
                name="loogle", scale=64, new_input=Lengths(30_000, 3380, 81_000, 0.6), output=Lengths(15, 2, 326, 0.9)
            ),
            Workload(
                name="openthoughts",
                scale=32,
                system_tokens=243,
                new_input=Lengths(466, 68, 4390, 0.6),
                output=Lengths(8374, 684, 32_000, 0.6),
            ),
            Workload(
                name="conversation",
                scale=32,
                system_tokens=512,
                continued=0.37,
                new_input=Lengths(7538, 379, 120_000, 1.2),
                output=Lengths(342, 1, 2000, 0.8),
            ),
            Workload(
                name="tool_agent",
                scale=32,
                system_tokens=512,
                continued=0.57,
                new_input=Lengths(3691, 379, 120_000, 1.2),
                output=Lengths(182, 1, 2000, 0.8),
            ),
        )
    }
)


def make_requests(
    workload: Workload,
    *,
    model: str,
    rate_per_s: float,
    count: int,
    seed: int,
    salt: int,
    slo_of: Callable[[int], Slo],
    longest_tokens: int = _LONGEST_TOKENS,
) -> list[TimedRequest]:
    """Poisson arrivals. The same seed gives the same lengths and the same arrivals, stretched to the rate, so that
    policies and rates are compared on one and the same workload. `salt` changes the tokens: no run meets prefixes of
    another in the cache. `slo_of` gives the targets of a prompt of so many tokens; no request is longer, with its
    output, than `longest_tokens`.
    """
    rng = np.random.default_rng([seed, count])
    tokens = np.random.default_rng([seed, salt])
    gaps = rng.exponential(size=count)
    arrivals_s = np.cumsum(gaps / gaps.mean()) / rate_per_s
    new_lengths = workload.new_input.draw(rng, count, divided_by=workload.scale, floor=2)
    output_lengths = workload.output.draw(rng, count, divided_by=workload.scale, floor=2)
    later_turn = rng.random(count) < workload.continued
    choices = rng.random(count)
    system = _token_ids(tokens, int(workload.system_tokens / workload.scale))
    conversations: list[tuple[int, list[int]]] = []  # (last turn's number, its prompt)
    timed = []
    for i in range(count):
        known = system
        able = [c for c in conversations if c[0] <= i - _LEAST_TURN_DISTANCE]
        if later_turn[i] and able:
            chosen = able[int(choices[i] * len(able))]
            conversations.remove(chosen)
            known = chosen[1]
        room = longest_tokens - output_lengths[i]
        if len(known) + new_lengths[i] > room:
            known = system
        prompt = (known + _token_ids(tokens, new_lengths[i]))[:room]
        conversations = [*conversations, (i, prompt)][-_OPEN_CONVERSATIONS:]
        request = GenerateRequest(
            request_id=f"{model}/{salt}/{i}",
            model=model,
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=output_lengths[i], temperature=0.0, ignore_eos=True),
            slo=slo_of(len(prompt)),
        )
        timed.append(TimedRequest(float(arrivals_s[i]), request))
    return timed


def _token_ids(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(20, _VOCABULARY, size=count)]


def _normal_quantile(q: float) -> float:
    return NormalDist().inv_cdf(min(max(q, 1e-6), 1 - 1e-6))
