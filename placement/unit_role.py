"""Says which part of requests a unit is for."""

from enum import StrEnum


class UnitRole(StrEnum):
    """A preference of gateways and planner: every unit can do all, and does where no other is left."""

    BOTH = "both"
    PREFILL = "prefill"  # prompts, up to the first token
    DECODE = "decode"  # what comes after it
