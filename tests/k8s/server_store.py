"""The objects of a real API server, where tests and the stand-in for KubeRay ask `ObjectStore`'s.

What a server before 1.28, the least that the chart takes, does not know is written as it knows it: budgets as
policy/v1beta1, CRDs without CEL rules.
"""

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from control_plane import ControlPlane
from helm_runner import LOADER
from standin_disruption import is_ready, selects
from standin_store import BUILT_IN, Key, ObjectStore, Refused, ResourceKind, place_among

_RAY = "ray.io/v1"
_POLICY, _OLD_POLICY = "policy/v1", "policy/v1beta1"
_POLICY_V1, ALWAYS_ALLOW, _ALL = 21, 26, 28  # minor versions that came to know them
_KINDS: Mapping[str, tuple[ResourceKind, ...]] = {
    **BUILT_IN,
    _RAY: (
        ResourceKind(resource="rayservices", kind="RayService"),
        ResourceKind(resource="rayclusters", kind="RayCluster"),
    ),
}
_CRDS = ("ray.io_rayclusters.yaml", "ray.io_rayservices.yaml")
_RUN = ("Job", "Pod")  # by nobody here
_OF_CLUSTER = frozenset({"Event", "ServiceAccount", "Secret", "ConfigMap"})  # some are made by controllers


class ServerStore:
    """`minor` is the server's: 20 of 1.20."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._client = plane.client()
        self.minor = int(self._client.get("/version").json()["minor"].rstrip("+"))

    def set_up(self, crds: Path) -> None:
        """Once for a control plane; `crds` is the folder of all."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "llm"}}
        self._asked("POST", "/api/v1/namespaces", namespace)
        for file in (crds / name for name in _CRDS):
            definition = yaml.load(file.read_text(), LOADER)
            definition.pop("status", None)
            body = definition if self.minor >= _ALL else _without_rules(definition)
            self._asked("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        _waited(lambda: self._client.get(_path((_RAY, "rayservices", "llm", ""))).is_success)

    def clear(self) -> None:
        for api_version, kinds in reversed(_KINDS.items()):
            for kind in kinds:
                if kind.kind not in ("Namespace", "Event", "Secret", "ConfigMap"):
                    namespace = "llm" if kind.is_namespaced else None
                    for item in self.listed(api_version, kind.resource, namespace, _is_ours)[0]:
                        self.remove((api_version, kind.resource, namespace, item["metadata"]["name"]))
        _waited(lambda: not self.contents())

    def wait_for_budgets(self) -> None:
        """Until the disruption controller has counted the pods as they are."""

        def is_counted() -> bool:
            pods = self.listed("v1", "pods", "llm", is_ready)[0]
            budgets = self.listed(_POLICY, "poddisruptionbudgets", "llm", _is_ours)[0]
            return all(b.get("status", {}).get("currentHealthy") == sum(selects(b, p) for p in pods) for b in budgets)

        _waited(is_counted)

    def account_client(self, account: str) -> httpx.Client:
        """Asks as the pods of that service account."""
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"{_path(('v1', 'serviceaccounts', 'llm', account))}/token"
        client = self._plane.client(self._asked("POST", path, wanted)["status"]["token"])
        if self.minor < _POLICY_V1:
            client.event_hooks = {"request": [_old_eviction]}
        return client

    def place_of(self, body: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns apiVersion and resource; None: this one is not asked for its kind."""
        return place_among(_KINDS, body)

    def get(self, key: Key) -> dict[str, Any]:
        return self._asked("GET", self._path(key))

    def listed(self, api_version: str, resource: str, namespace: str | None, matches: Callable[[Any], bool]) -> Any:
        found = self._asked("GET", self._path((api_version, resource, namespace, "")))
        kind = found["kind"].removesuffix("List")
        items = [item | {"apiVersion": api_version, "kind": kind} for item in found["items"] if matches(item)]
        return items, found["metadata"]["resourceVersion"]

    def contents(self) -> list[tuple[str, str]]:
        return sorted(
            (item["kind"], item["metadata"]["name"])
            for api_version, kinds in _KINDS.items()
            for kind in kinds
            if kind.is_namespaced and kind.kind not in _OF_CLUSTER
            for item in self.listed(api_version, kind.resource, "llm", _is_ours)[0]
        )

    def create(self, key: Key, body: dict[str, Any], *, is_dry: bool, is_checked: bool = True) -> dict[str, Any]:
        return self._asked("POST", self._path((*key[:3], "")), self._known(body))

    def replace(self, key: Key, body: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        return self._asked("PUT", self._path(key), self._known(body))

    def merge(self, key: Key, patch: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        return self._asked("PATCH", self._path(key), patch, "application/merge-patch+json")

    def apply(self, key: Key, body: dict[str, Any], manager: str, *, is_dry: bool) -> dict[str, Any]:
        query = {"fieldManager": manager, "force": "true"}
        return self._asked("PATCH", self._path(key), self._known(body), "application/apply-patch+yaml", query)

    def set_status(self, key: Key, status: dict[str, Any]) -> None:
        self._asked("PATCH", f"{self._path(key)}/status", {"status": status}, "application/merge-patch+json")

    def bind(self, key: Key, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": key[3]}, "target": target}
        self._asked("POST", f"{self._path(key)}/binding", body)

    def delete(self, key: Key) -> dict[str, Any]:
        return self._asked("DELETE", self._path(key))

    def remove(self, key: Key) -> dict[str, Any]:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if key[1] == "pods":
            options["gracePeriodSeconds"] = 0  # as a kubelet does when they have ended
        return self._asked("DELETE", self._path(key), options)

    def _path(self, key: Key) -> str:
        is_old = key[0] == _POLICY and self.minor < _POLICY_V1
        return _path((_OLD_POLICY, *key[1:]) if is_old else key)

    def _known(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body`, as far as this server knows it."""
        body = copy.deepcopy(body)
        if body["apiVersion"] == _POLICY and self.minor < ALWAYS_ALLOW:
            body["spec"].pop("unhealthyPodEvictionPolicy", None)
        if body["apiVersion"] == _POLICY and self.minor < _POLICY_V1:
            body["apiVersion"] = _OLD_POLICY
        return body

    def _asked(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        text = None if body is None else json.dumps(body)
        answer = self._client.request(verb, path, content=text, headers={"Content-Type": content_type}, params=query)
        told: dict[str, Any] = answer.json()
        if not answer.is_success:
            raise Refused(answer.status_code, told.get("reason", ""), told["message"])
        return told


def put_release(store: ObjectStore | ServerStore, objects: Sequence[dict[str, Any]]) -> None:
    """Applies a rendered chart: what rolling updates and drains look at, and at a server what that refers to."""
    looked_at = ("RayService", "PodDisruptionBudget")
    for body in objects:
        place = store.place_of(body)
        is_wanted = body["kind"] not in _RUN if isinstance(store, ServerStore) else body["kind"] in looked_at
        if place is not None and is_wanted:
            store.apply((*place, "llm", body["metadata"]["name"]), body, "helm", is_dry=False)


def _path(key: Key) -> str:
    api_version, resource, namespace, name = key
    base = f"/api/{api_version}" if api_version == "v1" else f"/apis/{api_version}"
    return base + (f"/namespaces/{namespace}" if namespace else "") + f"/{resource}" + (f"/{name}" if name else "")


def _old_eviction(request: httpx.Request) -> None:
    if request.url.path.endswith("/eviction"):
        text = request.read().replace(_POLICY.encode(), _OLD_POLICY.encode())
        request.headers["Content-Length"] = str(len(text))
        request.stream = httpx.ByteStream(text)


def _without_rules(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _without_rules(value) for key, value in node.items() if key != "x-kubernetes-validations"}
    return [_without_rules(item) for item in node] if isinstance(node, list) else node


def _is_ours(item: Mapping[str, Any]) -> bool:
    return item["metadata"]["name"] not in ("default", "kubernetes")


def _waited(is_done: Callable[[], bool]) -> None:
    for _ in range(300):
        if is_done():
            return
        time.sleep(0.1)
    raise TimeoutError("the API server did not come to rest within 30 s")
