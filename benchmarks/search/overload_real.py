"""The overload benchmark on the real CPU engine: the same questions, smaller requests, a clock that runs.

Workloads are those of policies.py: `chat` is ShareGPT, `agents` Tool&agent, both scaled to the machine; `mixed` is
`chat` with 5 % prompts of 1,500 to 3,000 tokens. Targets stand to one another as in virtual time: a gap has five solo
decode steps of eight sequences (there it has about ten), the first token of a chat the time of 20 such gaps, of an
agent 40, of a long prompt 200.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from engines.engine_session import EngineSession, RunOutcome
from engines.llama_checkpoint import llama_checkpoint
from engines.machine import Machine, Session, measured_machine
from load.request_times import TimedRequest, shares_of
from load.workloads import WORKLOADS, make_requests
from search.targets import Target, target_of

from pdmux_actor.messages import FinishReason, Slo
from pdmux_actor.scheduling.settings import SchedulerSettings

MODEL = "llama"
REAL_WORKLOADS: Mapping[str, str] = {"chat": "sharegpt", "mixed": "sharegpt", "agents": "tool_agent"}
_LAYERS = 16
TBT_STEPS = 5.0  # solo decode steps; at twice one step no policy has whole requests in time past capacity
_TTFT_GAPS: Mapping[str, float] = {"chat": 20.0, "mixed": 20.0, "agents": 40.0}
_LONG_SHARE, _LONG_TOKENS, _LONG_TTFT_GAPS = 0.05, (1500, 3000), 200.0
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
            times = _run(session, requests, tail_s=0.0).requests
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
            timed = self._requests(name, rate_per_s, self.seconds, salt=2)
            outcome = _run(session, timed, tail_s=self._slo(name).ttft_s)
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
        slo = self._slo(name)
        requests = make_requests(
            WORKLOADS[REAL_WORKLOADS[name]],
            model=MODEL,
            rate_per_s=rate_per_s,
            count=max(4, round(rate_per_s * duration_s)),
            seed=self.seed,
            salt=salt,
            slo_of=lambda _: slo,
        )
        return list(_with_long_prompts(requests, self.seed)) if name == "mixed" else requests

    def slos(self) -> Iterator[tuple[str, Slo]]:
        """Of each workload, but of its long prompts."""
        return ((name, self._slo(name)) for name in self.targets)

    def _slo(self, name: str) -> Slo:
        tbt_s = self.targets[name].tbt_s
        return Slo(ttft_s=_TTFT_GAPS[name] * tbt_s, tbt_s=tbt_s)


def measured_real_bench(
    names: Sequence[str],
    *,
    cache: Path,
    seconds: float,
    seed: int,
    tbt_steps: float = TBT_STEPS,
    steps_file: Path | None = None,
) -> RealBench:
    """A gap has `tbt_steps` solo decode steps. With `steps_file` in virtual time: launches take what it says."""
    checkpoint = llama_checkpoint(cache, num_layers=_LAYERS)
    with measured_machine(checkpoint, virtual=steps_file is not None, steps_file=steps_file) as machine:
        per_token_s = machine.prefill_s_per_token
        targets = {
            name: target_of(machine, WORKLOADS[REAL_WORKLOADS[name]], "overload", tbt_steps, per_token_s)
            for name in names
        }
    machine = replace(machine, threads=None)  # those are closed, and one engine is there at a time
    return RealBench(checkpoint=checkpoint, machine=machine, targets=targets, seconds=seconds, seed=seed)


def _run(session: Session, requests: Sequence[TimedRequest], *, tail_s: float) -> RunOutcome:
    """In virtual time until all is answered."""
    return session.run(requests, tail_s=tail_s) if isinstance(session, EngineSession) else session.run(requests)


def _with_long_prompts(requests: Sequence[TimedRequest], seed: int) -> Iterator[TimedRequest]:
    draw = np.random.default_rng([seed, len(requests)])
    for timed in requests:
        if draw.random() >= _LONG_SHARE:
            yield timed
            continue
        tokens = tuple(int(t) for t in draw.integers(20, 600, size=draw.integers(*_LONG_TOKENS)))
        tbt_s = timed.request.slo.tbt_s
        slo = Slo(ttft_s=_LONG_TTFT_GAPS * tbt_s, tbt_s=tbt_s)
        yield TimedRequest(timed.at_s, replace(timed.request, prompt_token_ids=tokens, slo=slo))
