"""The overload benchmark on the real CPU engine: the same questions, smaller requests, a clock that runs.

Workloads are those of policies.py: `chat` is ShareGPT, `agents` Tool&agent, both scaled to the machine; `mixed` is
`chat` with 5 % prompts of 1,500 to 3,000 tokens, which have ten times the chats' time for their first token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from engines.llama_checkpoint import llama_checkpoint
from engines.machine import Machine, Session, measured_machine
from load.overload_figures import shares_of
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, make_requests
from search.targets import Target, targets_of

from pdmux_actor.messages import FinishReason, Slo
from pdmux_actor.scheduling.settings import SchedulerSettings

MODEL = "llama"
REAL_WORKLOADS: Mapping[str, str] = {"chat": "sharegpt", "mixed": "sharegpt", "agents": "tool_agent"}
_LAYERS = 16
_LONG_SHARE, _LONG_TOKENS, _LONG_PATIENCE = 0.05, (1500, 3000), 10.0
_WARM_SHARE = 0.25
_FLOOD = 8.0  # times what one core each for prefill and decode would bear
_FLOOD_S = 12.0
_REFERENCE = "prefill_first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealBench:
    """One machine, and what its idle engine needs for a step. Every point has an engine of its own."""

    checkpoint: Path
    machine: Machine
    targets: Mapping[str, Target]
    seconds: float
    seed: int

    def capacity_per_s(self, name: str) -> float:
        """Requests that the reference finishes per second in the second half of a flood."""
        bearable_per_s = self.targets[name].bearable_per_s(WORKLOADS[REAL_WORKLOADS[name]])
        session = self._session(name, _REFERENCE)
        try:
            requests = self._requests(name, _FLOOD * bearable_per_s, _FLOOD_S)
            times = session.run(requests, tail_s=0.0).requests
        finally:
            session.close()
        ends_s = sorted(t.token_times_s[-1] for t in times if t.finish is FinishReason.LENGTH)
        if len(ends_s) < 4:
            raise SystemExit(f"{name}: this machine finishes hardly a request in {_FLOOD_S:g} s; it is too busy")
        return (len(ends_s) - len(ends_s) // 2) / max(1e-3, ends_s[-1] - ends_s[len(ends_s) // 2 - 1])

    def row(self, name: str, policy: str, load: float, rate_per_s: float) -> dict[str, Any]:
        session = self._session(name, policy)
        try:
            session.run(self._requests(name, rate_per_s / load / 2, self.seconds / 4, salt=1))  # to know its steps
            patience_s = max(self.targets[name].slo_of(int(_LONG_TOKENS[0])).ttft_s, 1.0)
            timed = self._requests(name, rate_per_s, self.seconds, salt=2)
            outcome = session.run(timed, tail_s=patience_s)
        finally:
            session.close()
        started_s = min((t.due_s for t in outcome.requests), default=0.0)
        from_s = _WARM_SHARE * self.seconds
        judged = [t for t in outcome.requests if t.due_s - started_s >= from_s]
        return {
            "workload": name,
            "through": "unit",
            "policy": policy,
            "load": load,
            "rate_per_s": round(rate_per_s, 3),
            "requests": len(judged),
            "goodput_per_s": round(sum(t.is_in_time for t in judged) / (self.seconds - from_s), 3),
            **shares_of(judged),
            "other_cores": round(outcome.other_cores, 3),
        }

    def _session(self, name: str, policy: str) -> Session:
        settings = SchedulerSettings(chunk_budget_tokens=self.targets[name].budget_tokens)
        return self.machine.session({MODEL: self.checkpoint}, policy, settings)

    def _requests(self, name: str, rate_per_s: float, duration_s: float, salt: int = 0) -> list[TimedRequest]:
        target = self.targets[name]
        requests = make_requests(
            WORKLOADS[REAL_WORKLOADS[name]],
            model=MODEL,
            rate_per_s=rate_per_s,
            count=max(4, round(rate_per_s * duration_s)),
            seed=self.seed,
            salt=salt,
            slo_of=target.slo_of,
        )
        return list(_with_long_prompts(requests, target, self.seed)) if name == "mixed" else requests


def measured_real_bench(names: Sequence[str], *, cache: Path, seconds: float, seed: int) -> RealBench:
    checkpoint = llama_checkpoint(cache, num_layers=_LAYERS)
    with measured_machine(checkpoint) as machine:
        per_token_s = machine.prefill_s_per_token
        targets = {
            name: targets_of(machine, WORKLOADS[REAL_WORKLOADS[name]], ["loose"], per_token_s)[0] for name in names
        }
    machine = replace(machine, threads=None)  # those are closed, and one engine is there at a time
    return RealBench(checkpoint=checkpoint, machine=machine, targets=targets, seconds=seconds, seed=seed)


def _with_long_prompts(requests: Sequence[TimedRequest], target: Target, seed: int) -> Iterator[TimedRequest]:
    draw = np.random.default_rng([seed, len(requests)])
    for timed in requests:
        if draw.random() >= _LONG_SHARE:
            yield timed
            continue
        tokens = tuple(int(t) for t in draw.integers(20, 600, size=draw.integers(*_LONG_TOKENS)))
        own = target.slo_of(len(tokens))
        slo = Slo(ttft_s=_LONG_PATIENCE * own.ttft_s, tbt_s=own.tbt_s)
        yield TimedRequest(timed.at_s, replace(timed.request, prompt_token_ids=tokens, slo=slo))
