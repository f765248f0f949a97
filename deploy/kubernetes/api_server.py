"""Talks to a Kubernetes API server: what a rolling update asks of it, and no more."""

import ssl
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import httpx

from deploy.bounded_transport import BoundedTransport
from deploy.environment import kubernetes_address
from deploy.errors import ApiServerNotNamed, ApiServerRefused

_TIMEOUT_S = 20.0
_UNREACHED = "correct --api-server, or let it be reached from here"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_RAY = "/apis/ray.io/v1"
_CORE = "/api/v1"
Document = Mapping[str, Any]
Operation = Mapping[str, Any]
"""Of a JSON patch (RFC 6902)."""


class _AccountToken(httpx.Auth):
    """The token of the pod's service account, which Kubernetes replaces while the pod runs."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {(_ACCOUNT / 'token').read_text().strip()}"
        yield request


def api_client(address: str | None, *, most_s: float = _TIMEOUT_S) -> httpx.Client:
    """Reaches the server at that address, without credentials, as `kubectl proxy` wants it; None: that of the cluster
    whose pod this is. No answer is waited for longer than `most_s`, nor 20 s.

    Raises ApiServerNotNamed: this is no pod.
    """
    timeout_s = min(most_s, _TIMEOUT_S)
    if address is not None:
        return httpx.Client(base_url=address, timeout=timeout_s, transport=BoundedTransport(trust_env=False))
    inside = kubernetes_address()
    if inside is None or not (_ACCOUNT / "token").is_file():
        raise ApiServerNotNamed
    authority = ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")
    transport = BoundedTransport(trust_env=False, verify=authority)
    return httpx.Client(base_url=inside, timeout=timeout_s, transport=transport, auth=_AccountToken())


class ApiServer:
    """The objects of one namespace. All methods raise ApiServerRefused; `status` 0: nobody answered."""

    def __init__(self, client: httpx.Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def ray_service(self, name: str) -> Document:
        return self._asked("GET", self._path(_RAY, "rayservices", name))

    def ray_cluster(self, name: str) -> Document | None:
        """None: it is gone."""
        return self._found(self._path(_RAY, "rayclusters", name))

    def service(self, name: str) -> Document | None:
        """None: it is not there yet."""
        return self._found(self._path(_CORE, "services", name))

    def patch_service(self, name: str, patch: Document) -> None:
        path = self._path(_CORE, "services", name)
        self._asked("PATCH", path, body=patch, content_type="application/merge-patch+json")

    def pods(self, cluster: str) -> Sequence[Document]:
        """Returns the pods of a RayCluster, also those that are ending."""
        path = self._path(_CORE, "pods")
        return cast(
            Sequence[Document], self._asked("GET", path, query={"labelSelector": f"ray.io/cluster={cluster}"})["items"]
        )

    def patch_ray_cluster(self, name: str, operations: Sequence[Operation]) -> None:
        path = self._path(_RAY, "rayclusters", name)
        self._asked("PATCH", path, body=list(operations), content_type="application/json-patch+json")

    def evict(self, pod: str) -> str | None:
        """Ends a pod as `kubectl drain` does, if its disruption budget allows; returns why not."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self._namespace}}
        try:
            self._asked("POST", f"{self._path('/api/v1', 'pods', pod)}/eviction", body=body)
        except ApiServerRefused as refusal:
            if refusal.status == httpx.codes.TOO_MANY_REQUESTS:
                return refusal.reason
            if refusal.status != httpx.codes.NOT_FOUND:
                raise
        return None

    def _found(self, path: str) -> Document | None:
        try:
            return self._asked("GET", path)
        except ApiServerRefused as refusal:
            if refusal.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def _path(self, group: str, resource: str, name: str | None = None) -> str:
        return f"{group}/namespaces/{self._namespace}/{resource}" + ("" if name is None else f"/{name}")

    def _asked(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Document:
        headers = {"content-type": content_type, "accept": "application/json"}
        try:
            answer = self._client.request(verb, path, params=query, json=body, headers=headers)
        except httpx.RequestError as error:
            reason = f"{self._client.base_url}: {error or type(error).__name__}; {_UNREACHED}"
            raise ApiServerRefused(asked=f"{verb} {path}", status=0, reason=reason) from error
        if not answer.is_success:
            raise ApiServerRefused(asked=f"{verb} {path}", status=answer.status_code, reason=_reason(answer))
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict) or not {"kind", "metadata"} & document.keys():
            reason = f"{answer.url.netloc.decode()} is no Kubernetes API server; correct --api-server"
            raise ApiServerRefused(asked=f"{verb} {path}", status=answer.status_code, reason=reason)
        return cast(Document, document)


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        told = " ".join(answer.text[:200].split()) or answer.reason_phrase
        return f"{told}, as no Kubernetes API server says it: {answer.url.netloc.decode()}; {_UNREACHED}"
