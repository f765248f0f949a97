"""The objects of the API stand-in: names, versions, patches and strict validation. Knows no HTTP.

It refuses what an API server with KubeRay's CRDs refuses, and unknown fields always. It has no controllers of its own
(`standin_operator` is one): no pod runs; pods and jobs count as done at once, so that hooks end. Ray's pods are the
operator's to run, and end when it says so.
"""

import copy
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_schemas import CustomSchemas
from operator_rules import object_problems

Key = tuple[str, str, str | None, str]
"""apiVersion, resource, namespace, name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    resource: str
    kind: str
    is_namespaced: bool = True


BUILT_IN: Mapping[str, tuple[ResourceKind, ...]] = {
    "v1": (
        ResourceKind(resource="namespaces", kind="Namespace", is_namespaced=False),
        ResourceKind(resource="nodes", kind="Node", is_namespaced=False),
        *(
            ResourceKind(resource=f"{kind.lower()}s", kind=kind)
            for kind in ("Pod", "Secret", "ConfigMap", "Service", "ServiceAccount", "PersistentVolumeClaim", "Event")
        ),
    ),
    "apps/v1": (
        ResourceKind(resource="deployments", kind="Deployment"),
        ResourceKind(resource="daemonsets", kind="DaemonSet"),
    ),
    "batch/v1": (ResourceKind(resource="jobs", kind="Job"),),
    "networking.k8s.io/v1": (
        ResourceKind(resource="ingresses", kind="Ingress"),
        ResourceKind(resource="networkpolicies", kind="NetworkPolicy"),
    ),
    "rbac.authorization.k8s.io/v1": (
        ResourceKind(resource="roles", kind="Role"),
        ResourceKind(resource="rolebindings", kind="RoleBinding"),
    ),
    "policy/v1": (ResourceKind(resource="poddisruptionbudgets", kind="PodDisruptionBudget"),),
}


class Refused(Exception):
    """As a Status object: HTTP code, reason, message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class ObjectStore:
    def __init__(self, schemas: CustomSchemas) -> None:
        self._schemas = schemas
        self.kinds: dict[str, tuple[ResourceKind, ...]] = dict(BUILT_IN)
        for (api_version, _), kind in schemas.kinds.items():
            names = kind.definition["names"]
            entry = ResourceKind(
                resource=names["plural"],
                kind=names["kind"],
                is_namespaced=kind.definition["scope"] == "Namespaced",
            )
            self.kinds[api_version] = (*self.kinds.get(api_version, ()), entry)
        self._objects: dict[Key, dict[str, Any]] = {}
        self._applied: dict[tuple[Key, str], dict[str, Any]] = {}
        self._revision = 1000
        self._lock = threading.RLock()
        for name in ("default", "kube-system", "llm"):
            self._objects["v1", "namespaces", None, name] = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "uid": str(uuid.uuid4()), "resourceVersion": "1"},
                "status": {"phase": "Active"},
            }

    def kind_of(self, api_version: str, resource: str) -> ResourceKind:
        for kind in self.kinds.get(api_version, ()):
            if kind.resource == resource:
                return kind
        raise Refused(404, "NotFound", f"the server could not find the requested resource {api_version} {resource}")

    def place_of(self, body: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns apiVersion and resource; None: the server does not know its kind."""
        return place_among(self.kinds, body)

    def get(self, key: Key) -> dict[str, Any]:
        with self._lock:
            if key not in self._objects:
                raise Refused(404, "NotFound", f'{key[1]} "{key[3]}" not found')
            return copy.deepcopy(self._objects[key])

    def listed(self, api_version: str, resource: str, namespace: str | None, matches: Callable[[Any], bool]) -> Any:
        with self._lock:
            found = [
                copy.deepcopy(o)
                for (version, of, where, _), o in self._objects.items()
                if (version, of) == (api_version, resource) and namespace in (None, where) and matches(o)
            ]
            return found, str(self._revision)

    def contents(self) -> list[tuple[str, str]]:
        """Kind and name of what the namespaces hold, without events."""
        with self._lock:
            return sorted(
                (o["kind"], o["metadata"]["name"])
                for o in self._objects.values()
                if o["kind"] not in ("Namespace", "Node")
            )

    def create(self, key: Key, body: dict[str, Any], *, is_dry: bool, is_checked: bool = True) -> dict[str, Any]:
        """Unchecked: what a controller makes of an object that was checked."""
        with self._lock:
            if key in self._objects:
                raise Refused(409, "AlreadyExists", f'{key[1]} "{key[3]}" already exists')
            return self._write(key, body, is_dry=is_dry, is_checked=is_checked)

    def replace(self, key: Key, body: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        with self._lock:
            self.get(key)
            return self._write(key, body, is_dry=is_dry)

    def merge(self, key: Key, patch: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        """Merge patch. Strategic merge patch is taken for it, which differs for lists: they are replaced."""
        with self._lock:
            return self._write(key, _merged(self.get(key), patch), is_dry=is_dry)

    def apply(self, key: Key, body: dict[str, Any], manager: str, *, is_dry: bool) -> dict[str, Any]:
        """Server-side apply by one manager: what it no longer sends goes."""
        with self._lock:
            live = copy.deepcopy(self._objects.get(key, {}))
            last = self._applied.get((key, manager), {})
            written = self._write(key, _merged(_without(live, last, body), body), is_dry=is_dry)
            if not is_dry:
                self._applied[key, manager] = copy.deepcopy(body)
            return written

    def patch(self, key: Key, operations: Sequence[Mapping[str, Any]], *, is_dry: bool) -> dict[str, Any]:
        """JSON patch, with `test`, `add`, `replace` and `remove`."""
        with self._lock:
            body = self.get(key)
            for operation in operations:
                _patch(body, operation)
            return self._write(key, body, is_dry=is_dry)

    def set_status(self, key: Key, status: dict[str, Any]) -> None:
        """As its controller does."""
        with self._lock:
            self._revision += 1
            body = self._objects[key]
            body["status"] = status
            body["metadata"]["resourceVersion"] = str(self._revision)

    def bind(self, key: Key, node: str) -> None:
        """As the scheduler does."""
        with self._lock:
            self._objects[key]["spec"]["nodeName"] = node

    def delete(self, key: Key) -> dict[str, Any]:
        """Ray's pods are told to end and stay until the operator says that they have drained."""
        with self._lock:
            gone = self.get(key)
            if _is_ray_pod(gone):
                self._objects[key]["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
                return gone
            return self.remove(key)

    def remove(self, key: Key) -> dict[str, Any]:
        with self._lock:
            gone = self.get(key)
            del self._objects[key]
            for applied in [a for a in self._applied if a[0] == key]:
                del self._applied[applied]
            return gone

    def _write(self, key: Key, body: dict[str, Any], *, is_dry: bool, is_checked: bool = True) -> dict[str, Any]:
        api_version, resource, namespace, name = key
        kind = self.kind_of(api_version, resource)
        if namespace is not None and ("v1", "namespaces", None, namespace) not in self._objects:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if (body.get("apiVersion"), body.get("kind")) != (api_version, kind.kind):
            raise Refused(
                400, "BadRequest", f"{body.get('apiVersion')}/{body.get('kind')} is no {api_version}/{kind.kind}"
            )
        old = self._objects.get(key)
        body = self._schemas.defaulted(body)
        body["metadata"] = dict(body["metadata"], name=name)
        body["metadata"].pop("managedFields", None)
        if namespace is not None:
            body["metadata"]["namespace"] = namespace
        if is_checked:
            self._check(body, old)
        before = old["metadata"] if old else {}
        changed = old is None or {**old, "metadata": 0} != {**body, "metadata": 0}
        if not is_dry:
            self._revision += 1
        body["metadata"] |= {
            "resourceVersion": str(self._revision),
            "uid": before.get("uid", str(uuid.uuid4())),
            "creationTimestamp": before.get("creationTimestamp", "2026-01-01T00:00:00Z"),
            "generation": before.get("generation", 0) + changed,
        }
        if body["kind"] == "Pod" and not _is_ray_pod(body):
            body["status"] = {"phase": "Succeeded"}
        elif old is not None and "status" in old:
            body["status"] = copy.deepcopy(old["status"])
        if not is_dry:
            self._objects[key] = copy.deepcopy(body)
        return body

    def _check(self, body: dict[str, Any], old: dict[str, Any] | None) -> None:
        bare = {k: v for k, v in body.items() if k != "status"}
        problems = self._schemas.problems(bare, old) or list(object_problems(bare))
        if problems:
            name = body["metadata"]["name"]
            raise Refused(422, "Invalid", f'{body["kind"]} "{name}" is invalid: ' + "; ".join(problems[:5]))


def place_among(kinds: Mapping[str, Sequence[ResourceKind]], body: Mapping[str, Any]) -> tuple[str, str] | None:
    of = [kind.resource for kind in kinds.get(body["apiVersion"], ()) if kind.kind == body["kind"]]
    return (body["apiVersion"], of[0]) if of else None


def _is_ray_pod(body: Mapping[str, Any]) -> bool:
    return body["kind"] == "Pod" and "ray.io/cluster" in (body["metadata"].get("labels") or {})


def _patch(body: Any, operation: Mapping[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in parents:
        body = body[int(part)] if isinstance(body, list) else body[part]
    if operation["op"] == "test":
        if body.get(last) != operation["value"]:
            raise Refused(422, "Invalid", f"{operation['path']} is {body.get(last)!r}, not {operation['value']!r}")
    elif operation["op"] == "remove":
        del body[last]
    else:
        body[last] = copy.deepcopy(operation["value"])


def _merged(live: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(live)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = _merged(out[key], value)
        else:
            out[key] = value
    return out


def _without(live: dict[str, Any], last: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in last.items():
        if key not in new:
            live.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(new[key], Mapping) and isinstance(live.get(key), dict):
            _without(live[key], value, new[key])
    return live
