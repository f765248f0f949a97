"""Policies by the name that the fleet file uses."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pdmux_actor.scheduling.policies.base import DispatchPolicy
from pdmux_actor.scheduling.policies.chunked_prefill import ChunkedPrefill
from pdmux_actor.scheduling.policies.mux import Mux
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst

POLICIES: Mapping[str, Callable[[], DispatchPolicy]] = MappingProxyType(
    {policy.name: policy for policy in (Mux, PrefillFirst, ChunkedPrefill)}
)


def make_policy(name: str) -> DispatchPolicy:
    """Raises ValueError that names the known policies."""
    if name not in POLICIES:
        raise ValueError(f"unknown dispatch policy {name!r}: use one of {', '.join(POLICIES)}")
    return POLICIES[name]()
