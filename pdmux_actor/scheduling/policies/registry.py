"""Policies by the name that the fleet file uses: every file of this folder that declares a POLICY."""

from pdmux_actor.scheduling.policies.dispatch_policy import DispatchPolicy
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from traces.register import Register

POLICIES = Register("pdmux_actor.scheduling.policies", "POLICY", PolicyEntry)


def make_policy(name: str) -> DispatchPolicy:
    """Raises ValueError that names the known policies."""
    if name not in POLICIES:
        raise ValueError(f"{name!r}: {POLICIES.remedy(name)}")
    return POLICIES[name].make()
