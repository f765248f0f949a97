"""Targets of a machine of any speed: multiples of what its engine needs when it is idle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engines.machine import Machine
from engines.solo_steps import token_budget
from load.workloads import Workload

from pdmux_actor.messages import Slo

TARGETS: Mapping[str, float] = MappingProxyType({"tight": 1.5, "loose": 2.0})
BATCH = 8  # the typical batch that targets and budgets are measured at
_TTFT_STEPS, _TTFT_PREFILLS = 10, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workload's targets; `budget_tokens` is chunked prefill's."""

    name: str
    tbt_s: float
    step_s: float
    prefill_s_per_token: float
    budget_tokens: int

    def slo_of(self, prompt_tokens: int) -> Slo:
        ttft_s = _TTFT_STEPS * self.step_s + _TTFT_PREFILLS * self.prefill_s_per_token * prompt_tokens
        return Slo(ttft_s=ttft_s, tbt_s=self.tbt_s)

    def bearable_per_s(self, workload: Workload, *, prefill_factor: float = 1.0) -> float:
        """What one core each for prefill and decode of the typical batch would bear."""
        prefill_s = prefill_factor * self.prefill_s_per_token * workload.mean_new_tokens
        decode_s = self.step_s * workload.mean_output_tokens / BATCH
        return 1 / max(prefill_s, decode_s)


def targets_of(machine: Machine, workload: Workload, names: Sequence[str], per_token_s: float) -> list[Target]:
    """`per_token_s` is the prefill's, measured once for all workloads."""
    return [target_of(machine, workload, name, TARGETS[name], per_token_s) for name in names]


def target_of(machine: Machine, workload: Workload, name: str, solo_steps: float, per_token_s: float) -> Target:
    """A gap may take `solo_steps` decode steps of the typical batch."""
    context = workload.mean_context_tokens
    step_s = machine.times.step_s(BATCH, context)
    return Target(
        name=name,
        tbt_s=solo_steps * step_s,
        step_s=step_s,
        prefill_s_per_token=per_token_s,
        budget_tokens=token_budget(machine.times, BATCH, context, solo_steps * step_s),
    )
