"""A loopback stand-in for the Kubernetes API, for the real helm. No cluster: see `standin_store` for what it is not."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from helm_runner import LOADER
from standin_disruption import evict
from standin_protobuf import MAGIC, decoded
from standin_store import ObjectStore, Refused

_MINOR = "35"
_OBJECT = re.compile(
    r"(?:/api/(?P<v1>v1)|/apis/(?P<gv>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?"
)
_EVICTION = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/eviction")
_NAMESPACE = re.compile(r"/api/v1/namespaces/(?P<name>[^/]+)")
_GROUP_VERSION = re.compile(r"/api/(?P<v1>v1)|/apis/(?P<gv>[^/]+/[^/]+)")
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_EVICTION_RESOURCE = {
    "name": "pods/eviction",
    "singularName": "",
    "namespaced": True,
    "group": "policy",
    "version": "v1",
    "kind": "Eviction",
    "verbs": ["create"],
}
Query = Mapping[str, list[str]]


@contextmanager
def api_standin(store: ObjectStore) -> Iterator[str]:
    """Yields its address."""
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(address: str, *, authority: Path | None = None, token: str | None = None) -> str:
    """With an authority and a token for a real server."""
    cluster = {"server": address} | ({} if authority is None else {"certificate-authority": str(authority)})
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "standin",
            "clusters": [{"name": "standin", "cluster": cluster}],
            "users": [{"name": "nobody", "user": {} if token is None else {"token": token}}],
            "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "nobody", "namespace": "llm"}}],
        }
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: clients would wait 40 ms between them
    store: ObjectStore

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  the base class names them

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        path = url.path.rstrip("/") or "/"
        try:
            if query.get("watch", ["0"])[0] in ("1", "true"):
                self._watch(path, query)
                return
            code, body = self._route(path, query, raw)
        except Refused as refusal:
            code, body = refusal.code, refusal.status
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _route(self, path: str, query: Query, raw: bytes) -> tuple[int, Any]:
        if path == "/version":
            return 200, {"major": "1", "minor": _MINOR, "gitVersion": f"v1.{_MINOR}.0", "platform": "linux/amd64"}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == "/apis":
            return 200, self._groups()
        if path.startswith("/openapi/v3"):
            return 200, self._openapi(path)
        if found := _GROUP_VERSION.fullmatch(path):
            return 200, self._resources(found["v1"] or found["gv"])
        return self._object(path, query, raw)

    def _object(self, path: str, query: Query, raw: bytes) -> tuple[int, Any]:
        store = self.store
        if found := _EVICTION.fullmatch(path):
            evict(store, found["namespace"], found["name"])
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        api_version, resource, namespace, name = _parts(path)
        kind = store.kind_of(api_version, resource)
        if self.command == "GET" and name is None:
            items, revision = store.listed(api_version, resource, namespace, _selector(query))
            metadata = {"resourceVersion": revision}
            return 200, {"kind": f"{kind.kind}List", "apiVersion": api_version, "metadata": metadata, "items": items}
        if self.command == "GET":
            return 200, store.get((api_version, resource, namespace, str(name)))
        if self.command == "DELETE":
            return 200, store.delete((api_version, resource, namespace, str(name)))
        body = decoded(raw) if raw.startswith(MAGIC) else yaml.load(raw, LOADER)
        is_dry = "dryRun" in query
        key = (api_version, resource, namespace, name or body["metadata"]["name"])
        if self.command == "POST":
            return 201, store.create(key, body, is_dry=is_dry)
        if self.command == "PUT":
            return 200, store.replace(key, body, is_dry=is_dry)
        kind_of_patch = self.headers.get("Content-Type", "")
        if "apply-patch" in kind_of_patch:
            return 200, store.apply(key, body, query.get("fieldManager", [""])[0], is_dry=is_dry)
        if "json-patch" in kind_of_patch:
            return 200, store.patch(key, body, is_dry=is_dry)
        if "merge-patch" not in kind_of_patch:
            raise Refused(415, "UnsupportedMediaType", kind_of_patch)
        return 200, store.merge(key, body, is_dry=is_dry)

    def _groups(self) -> Any:
        groups: dict[str, list[dict[str, str]]] = {}
        for api_version in self.store.kinds:
            if "/" in api_version:
                group, version = api_version.split("/")
                groups.setdefault(group, []).append({"groupVersion": api_version, "version": version})
        listed = [{"name": g, "versions": v, "preferredVersion": v[0]} for g, v in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}

    def _resources(self, api_version: str) -> Any:
        if api_version not in self.store.kinds:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resources = [
            {
                "name": kind.resource,
                "singularName": kind.kind.lower(),
                "namespaced": kind.is_namespaced,
                "kind": kind.kind,
                "verbs": _VERBS,
            }
            for kind in self.store.kinds[api_version]
        ]
        if api_version == "v1":
            resources.append(_EVICTION_RESOURCE)
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}

    def _openapi(self, path: str) -> Any:
        """Says that writes take fieldValidation, so that clients leave validation to the server."""
        paths = {("api/v1" if v == "v1" else f"apis/{v}"): v for v in self.store.kinds}
        if path == "/openapi/v3":
            return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}?hash=0"} for p in paths}}
        api_version = paths.get(path.removeprefix("/openapi/v3/"))
        if api_version is None:
            raise Refused(404, "NotFound", path)
        group, _, version = api_version.rpartition("/")
        documents: dict[str, Any] = {}
        for kind in self.store.kinds[api_version]:
            operation = {
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind.kind},
                "parameters": [
                    {"name": n, "in": "query"} for n in ("fieldValidation", "fieldManager", "dryRun", "force")
                ],
                "responses": {},
            }
            base = f"/api{'' if api_version == 'v1' else 's'}/{api_version}"
            base += ("/namespaces/{namespace}" if kind.is_namespaced else "") + f"/{kind.resource}"
            documents[base] = {"post": operation | {"x-kubernetes-action": "post"}}
            documents[base + "/{name}"] = {"patch": operation | {"x-kubernetes-action": "patch"}, "put": operation}
        info = {"title": "stand-in", "version": f"v1.{_MINOR}"}
        return {"openapi": "3.0.0", "info": info, "paths": documents, "components": {"schemas": {}}}

    def _watch(self, path: str, query: Query) -> None:
        """The present state, then the end of the stream: nothing changes by itself here, and clients ask again."""
        api_version, resource, namespace, _ = _parts(path)
        kind = self.store.kind_of(api_version, resource)
        items, revision = self.store.listed(api_version, resource, namespace, _selector(query))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        for item in items:
            self._event("ADDED", item)
        annotations = {"k8s.io/initial-events-end": "true"}
        metadata = {"resourceVersion": revision, "annotations": annotations}
        self._event("BOOKMARK", {"kind": kind.kind, "apiVersion": api_version, "metadata": metadata})
        self.close_connection = True
        threading.Event().wait(0.2)

    def _event(self, kind: str, item: Any) -> None:
        self.wfile.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        self.wfile.flush()


def _parts(path: str) -> tuple[str, str, str | None, str | None]:
    if found := _NAMESPACE.fullmatch(path):
        return "v1", "namespaces", None, found["name"]
    if found := _OBJECT.fullmatch(path):
        return found["v1"] or found["gv"], found["resource"], found["namespace"], found["name"]
    raise Refused(404, "NotFound", f"the server could not find the requested resource {path}")


def _selector(query: Query) -> Callable[[Any], bool]:
    labels = [term for text in query.get("labelSelector", []) for term in re.split(r",(?![^(]*\))", text) if term]
    fields = [term for text in query.get("fieldSelector", []) for term in text.split(",") if term]

    def matches(item: Any) -> bool:
        own = item["metadata"].get("labels") or {}
        return all(_label_matches(t, own) for t in labels) and all(_field_matches(t, item) for t in fields)

    return matches


def _label_matches(term: str, labels: Mapping[str, str]) -> bool:
    if found := re.fullmatch(r"(\S+) in \((.*)\)", term):
        return labels.get(found[1]) in [value.strip() for value in found[2].split(",")]
    if found := re.fullmatch(r"([^=!]+)(!=|==?)(.*)", term):
        return (labels.get(found[1]) == found[3]) == (found[2] != "!=")
    return term in labels


def _field_matches(term: str, item: Mapping[str, Any]) -> bool:
    key, _, value = term.replace("==", "=").partition("=")
    if key == "spec.nodeName":
        return bool(item["spec"].get("nodeName") == value)
    return key != "metadata.name" or item["metadata"]["name"] == value
