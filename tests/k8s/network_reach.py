"""Evaluates NetworkPolicies as network plugins do: https://kubernetes.io/docs/concepts/services-networking/network-policies/.

Policies add up; a pod that none selects is open; what one allows is allowed. Both ends have to agree.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A pod with labels in a namespace, or an address outside the cluster."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    address: str = "10.1.2.3"

    @property
    def is_pod(self) -> bool:
        return bool(self.namespace)


def is_open(policies: Sequence[dict[str, Any]], start: End, end: End, port: int, protocol: str = "TCP") -> bool:
    """Tells whether `start` may open a connection to that port of `end`."""
    return _allows(policies, "Egress", start, end, port, protocol) and _allows(
        policies, "Ingress", end, start, port, protocol
    )


def _allows(policies: Sequence[dict[str, Any]], direction: str, of: End, peer: End, port: int, protocol: str) -> bool:
    if not of.is_pod:
        return True
    own = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == of.namespace
        and direction in policy["spec"]["policyTypes"]
        and _matches(policy["spec"]["podSelector"], of.labels)
    ]
    key = direction.lower()
    return not own or any(
        _names_port(rule, port, protocol) and _names_peer(rule, key, peer, of.namespace)
        for spec in own
        for rule in spec.get(key, ())
    )


def _names_port(rule: Mapping[str, Any], port: int, protocol: str) -> bool:
    listed = rule.get("ports")
    return not listed or any(
        entry.get("protocol", "TCP") == protocol
        and ("port" not in entry or entry["port"] <= port <= entry.get("endPort", entry["port"]))
        for entry in listed
    )


def _names_peer(rule: Mapping[str, Any], direction: str, peer: End, namespace: str) -> bool:
    listed = rule.get("to" if direction == "egress" else "from")
    return not listed or any(_is_peer(entry, peer, namespace) for entry in listed)


def _is_peer(entry: Mapping[str, Any], peer: End, namespace: str) -> bool:
    if "ipBlock" in entry:
        return _is_in_block(entry["ipBlock"], peer)
    if not peer.is_pod:
        return False
    if "namespaceSelector" in entry:
        if not _matches(entry["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace}):
            return False
    elif peer.namespace != namespace:
        return False
    return _matches(entry.get("podSelector", {}), peer.labels)


def _is_in_block(block: Mapping[str, Any], peer: End) -> bool:
    address = ipaddress.ip_address(peer.address)

    def holds(cidr: str) -> bool:
        return address in ipaddress.ip_network(cidr)

    return holds(block["cidr"]) and not any(map(holds, block.get("except", ())))


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert not set(selector) - {"matchLabels"}, "expressions are not evaluated here"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
