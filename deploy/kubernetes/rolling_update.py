"""Replaces the pods of a running Ray cluster, one after the other, as its RayService says.

KubeRay answers a changed pod template with a second cluster, or with nothing (`upgradeStrategy: None`). This is for the
latter: it hands the template to the running cluster and evicts one pod at a time. SIGTERM drains it (ADR 13), KubeRay
makes its successor, and the next one goes when the fleet is whole again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.errors import ApiServerRefused, RolloutRefused, RolloutStuck
from deploy.kubernetes.api_server import ApiServer, Document
from deploy.kubernetes.ray_pods import (
    HEAD_GROUP,
    REVISION,
    PodGroup,
    RayPod,
    changes_of,
    groups_of,
    outlives_head,
    pod_of,
    unrollable_changes,
)

_POLL_S = 2.0
_UNREACHED_S = 60.0  # of an API server that has not answered once
_FAILED = frozenset({"DEPLOY_FAILED"})
_NOT_FOUND = 404
_PASSING = frozenset({0, 409, 422, 429, 500, 502, 503, 504})  # nobody there, or somebody else wrote: asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    pod: RayPod


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    what: str


def next_step(
    groups: Sequence[PodGroup], pods: Sequence[RayPod], what_is_missing: Callable[[], str | None]
) -> Evict | WaitFor | None:
    """One pod at a time, and none while the fleet misses something; a pod that is not ready goes before others, for
    nothing is lost with it. None: all pods are of their group's template.
    """
    outdated: list[RayPod] = []
    waits: list[str] = []
    for group in groups:
        own = [pod for pod in pods if pod.group == group.name]
        waits += [f"pod {pod.name} to end" for pod in own if pod.is_going]
        if len(own) < group.replicas:
            waits.append(f"{group.name}: {len(own)} of {group.replicas} pods are there")
        stays = [pod for pod in own if not pod.is_going]
        waits += [f"pod {p.name} to be ready" for p in stays if p.template == group.template and not p.is_ready]
        outdated += [pod for pod in stays if pod.template != group.template]
    if waits:
        return WaitFor(what=waits[0])
    for pod in outdated:
        if not pod.is_ready:
            return Evict(pod=pod)
    if (missing := what_is_missing()) is not None:
        return WaitFor(what=missing)
    return Evict(pod=outdated[0]) if outdated else None


class RollingUpdate:
    """`revision` of the RayService is waited for, unless None; `what_is_missing` says what its fleet lacks; `say` is
    told of every step.
    """

    def __init__(
        self,
        api: ApiServer,
        service: str,
        *,
        revision: str | None,
        what_is_missing: Callable[[Document], str | None],
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        timeout_s: float,
    ) -> None:
        self._api = api
        self._service = service
        self._revision = revision
        self._what_is_missing = what_is_missing
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._timeout_s = timeout_s
        self._stuck_at_s = clock() + min(timeout_s, _UNREACHED_S)
        self._is_reached = False
        self._waits_for = ""

    def run(self) -> None:
        """Raises RolloutRefused, RolloutStuck and what the API server will not do: ApiServerRefused."""
        while True:
            try:
                waits_for = self._step()
                self._reached()
            except ApiServerRefused as refusal:
                if refusal.status != 0:
                    self._reached()
                is_coming = refusal.status == _NOT_FOUND and self._revision is not None
                is_passing = refusal.status in _PASSING or is_coming
                if not is_passing or (not self._is_reached and self._is_late()):
                    raise
                waits_for = str(refusal)
            if waits_for is None:
                return
            if waits_for != self._waits_for:
                self._waits_for = waits_for
                self._say(f"waiting: {waits_for}")
            if self._is_late():
                raise RolloutStuck(service=self._service, waits_for=waits_for, timeout_s=self._timeout_s)
            self._sleep(_POLL_S)

    def _reached(self) -> None:
        if not self._is_reached:
            self._is_reached = True
            self._stuck_at_s = self._clock() + self._timeout_s

    def _is_late(self) -> bool:
        return self._clock() >= self._stuck_at_s

    def _step(self) -> str | None:
        """Returns what is waited for; None: all is done."""
        service = self._api.ray_service(self._service)
        if self._revision not in (None, service["metadata"].get("annotations", {}).get(REVISION)):
            return f"revision {self._revision} of {self._service}"
        name, pending = (_cluster(service, which) for which in ("activeServiceStatus", "pendingServiceStatus"))
        cluster = None if name is None else self._api.ray_cluster(name)
        if name is None or cluster is None:
            self._say("no Ray cluster runs yet; KubeRay makes it as the RayService says")
            return None
        if pending is not None:
            return f"KubeRay to switch to the cluster {pending}"
        if keys := unrollable_changes(service, cluster):
            raise RolloutRefused(service=self._service, reason=f"{', '.join(keys)} changed")
        self._change_serve_service(service)
        if changes := changes_of(service, cluster):
            self._api.patch_ray_cluster(name, changes)
            self._went_on(f"{name}: takes new pods by the templates of {self._service}")
            return f"{name} to take the templates"
        self._check_applications(service)
        pods = [pod_of(document) for document in self._api.pods(name)]
        step = next_step(groups_of(cluster), pods, lambda: self._what_is_missing(service))
        if isinstance(step, Evict):
            refusal = self._api.evict(step.pod.name)
            if refusal is not None:
                return f"{step.pod.name} may not go yet: {refusal}"
            self._went_on(f"{step.pod.name}: drains, its successor follows")
            return f"pod {step.pod.name} to end"
        if isinstance(step, WaitFor):
            return step.what
        self._say_done(cluster, pods)
        return None

    def _change_serve_service(self, service: Document) -> None:
        name = serve_service_name(self._service)
        live = self._api.service(name)
        change = None if live is None else change_of(service, live)
        if change is not None:
            self._api.patch_service(name, change.patch)
            self._went_on(f"{name}: takes {', '.join(change.told)}")

    def _went_on(self, told: str) -> None:
        self._say(told)
        self._stuck_at_s = self._clock() + self._timeout_s

    def _check_applications(self, service: Document) -> None:
        """A head of the old image may not know the new Serve config; new pods would then have nothing to run."""
        states = service["status"]["activeServiceStatus"].get("applicationStatuses") or {}
        for name, state in states.items():
            if state.get("status") in _FAILED:
                told = f"Serve does not take application {name}: {state.get('message', '')}".strip(": ")
                raise RolloutRefused(service=self._service, reason=told)

    def _say_done(self, cluster: Document, pods: Sequence[RayPod]) -> None:
        head = cluster["spec"]["headGroupSpec"]["template"].get("metadata", {}).get("labels", {})
        is_old = any(p.group == HEAD_GROUP and p.template not in head.values() for p in pods)
        if is_old and not outlives_head(cluster):
            self._say("the head keeps its pod: without redis.address its loss would restart the fleet")
        self._say(f"{self._service}: all pods are as it says")


def _cluster(service: Document, which: str) -> str | None:
    found = service.get("status", {}).get(which, {}).get("rayClusterName")
    return None if not found else str(found)


_KUBERAYS = ("selector", "ports")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChange:
    """`patch` is a JSON merge patch (RFC 7396), `told` what it changes."""

    patch: Document
    told: Sequence[str]


def serve_service_name(ray_service: str) -> str:
    return f"{ray_service}-serve-svc"


def change_of(ray_service: Document, live: Document) -> ServiceChange | None:
    """Says what the Service before the gateways lacks of its RayService's spec: KubeRay makes it once and does not
    change it while the Ray cluster stays. None: it has all that is asked for. What is no longer asked for stays:
    others, such as a cloud's controller, write into Services too.
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
