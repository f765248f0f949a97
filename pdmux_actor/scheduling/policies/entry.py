"""Defines what a policy says of itself."""

from collections.abc import Callable
from dataclasses import dataclass

from pdmux_actor.scheduling.policies.dispatch_policy import DispatchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """`name` is what the fleet file uses; `rule` and `source` are its line of docs/policies.md. `make` makes one for a
    unit. `fuses`: it asks for fused steps, which SGLang's multiplexing cannot run.
    """

    name: str
    rule: str
    source: str
    make: Callable[[], DispatchPolicy]
    fuses: bool = False
