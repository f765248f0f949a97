"""Policies by the name that the fleet file uses."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pdmux_actor.scheduling.policies.adbs import Adbs
from pdmux_actor.scheduling.policies.base import DispatchPolicy
from pdmux_actor.scheduling.policies.chunked_prefill import ChunkedPrefill
from pdmux_actor.scheduling.policies.duetserve import DuetServe
from pdmux_actor.scheduling.policies.mux import Mux
from pdmux_actor.scheduling.policies.muxwise import MuxWise
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.static_split import StaticSplit
from pdmux_actor.scheduling.policies.temporal import Temporal

POLICIES: Mapping[str, Callable[[], DispatchPolicy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (Mux, MuxWise, DuetServe, Adbs, ChunkedPrefill, PrefillFirst, Temporal, StaticSplit)
    }
)


def make_policy(name: str) -> DispatchPolicy:
    """Raises ValueError that names the known policies."""
    if name not in POLICIES:
        raise ValueError(f"unknown dispatch policy {name!r}: use one of {', '.join(POLICIES)}")
    return POLICIES[name]()
