"""Counts what launches took, beside what the latency model says of them: evidence for who plans with such a model."""

import math

import msgspec

from pdmux_actor.messages import StepTotals

_WARM_UP = 3  # launches of a model and phase: kernels are compiled and memory is touched for the first time
_LEAST, _MOST = 0.05, 50.0  # times the model: beyond, it is not the step that took so long
_PARTS = 4


class _Sums(msgspec.Struct, gc=False):
    launches: int = 0
    modelled_s: float = 0.0
    measured_s: float = 0.0


class MeasuredSteps:
    """Costs the engine some additions per launch. Counts only grow until the model leaves."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[tuple[str, int], _Sums]] = {}  # by model, then by phase and SMs
        self._seen: dict[tuple[str, str], int] = {}  # by model and phase

    def note(self, model: str, phase: str, sms: int, modelled_s: float, measured_s: float) -> None:
        seen = self._seen.get((model, phase), 0)
        if seen < _WARM_UP:
            self._seen[model, phase] = seen + 1
            return
        of_model = self._sums.setdefault(model, {})
        sums = of_model.get((phase, sms))
        if sums is None:
            sums = of_model[phase, sms] = _Sums()
        sums.launches += 1
        sums.modelled_s += modelled_s
        sums.measured_s += min(max(measured_s, _LEAST * modelled_s), _MOST * modelled_s)

    def of(self, model: str, num_sms: int) -> tuple[StepTotals, ...]:
        """Returns the totals of each phase on each quarter of the SMs."""
        found: dict[tuple[str, int], StepTotals] = {}
        for (phase, sms), sums in self._sums.get(model, {}).items():
            key = phase, math.ceil(_PARTS * sms / num_sms)
            before = found.get(key) or StepTotals(model=model, phase=phase, quarters=key[1])
            found[key] = StepTotals(
                model=model,
                phase=phase,
                quarters=key[1],
                launches=before.launches + sums.launches,
                modelled_s=before.modelled_s + sums.modelled_s,
                measured_s=before.measured_s + sums.measured_s,
            )
        return tuple(found[key] for key in sorted(found))

    def forget(self, model: str) -> None:
        self._sums.pop(model, None)
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != model}
