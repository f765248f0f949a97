"""Defines how far the steps that units measure are from what the throughput estimate expects of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """`prefill` and `decode`: how much longer steps take than the latency model and the host's time say; below 1 they
    are faster. `contention`: how much longer decode takes beside a prefill than the estimate's own factor says.
    """

    prefill: float = 1.0
    decode: float = 1.0
    contention: float = 1.0


UNCORRECTED = StepCorrection()
