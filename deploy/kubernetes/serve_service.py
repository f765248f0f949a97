"""Finds what the Service before the gateways lacks of its RayService's spec. KubeRay makes it once and does not change
it while the Ray cluster behind it stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.kubernetes.api_server import Document

_KUBERAYS = ("selector", "ports")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChange:
    """`patch` is a JSON merge patch (RFC 7396), `told` what it changes."""

    patch: Document
    told: Sequence[str]


def serve_service_name(ray_service: str) -> str:
    return f"{ray_service}-serve-svc"


def change_of(ray_service: Document, live: Document) -> ServiceChange | None:
    """Returns None where the Service has all that is asked for. What is no longer asked for stays: others, such as a
    cloud's controller, write into Services too.
    """
    wanted = ray_service["spec"].get("serveService", {})
    notes = _lacking(wanted.get("metadata", {}).get("annotations", {}), live["metadata"].get("annotations", {}))
    spec = _lacking({k: v for k, v in wanted.get("spec", {}).items() if k not in _KUBERAYS}, live["spec"])
    if not notes and not spec:
        return None
    patch = ({"metadata": {"annotations": notes}} if notes else {}) | ({"spec": spec} if spec else {})
    told = [f"annotations {', '.join(notes)}"] if notes else []
    return ServiceChange(patch=patch, told=[*told, *spec])


def _lacking(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in wanted.items() if not _holds(live.get(key), value)}


def _holds(live: object, wanted: object) -> bool:
    """Servers write defaults into mappings."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return all(_holds(live.get(key), value) for key, value in wanted.items())
    return bool(live == wanted)
