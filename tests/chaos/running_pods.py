"""Pods of the stand-in for KubeRay that run: each is a Ray node of this machine with the environment of its template,
which drains on SIGTERM and is killed when its grace is over. One pod for each group.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from ray_nodes import RayNode, RayNodes
from standin_disruption import is_ready
from standin_operator import Operator

_TICK_S = 0.5
_PROBE_S = 2.0
_HEAD = "headgroup"
_DEFAULT_GRACE_S = 30
_OF_RAY = ("RAY_", "MUXFLEET_")
_NOT_HERE = frozenset({"RAY_SERVE_HAPROXY_BINARY_PATH"})  # a path of the image


@dataclass
class RunningPods(Operator):
    """`groups` are the worker groups, with the numbers that `RayNodes` tells their nodes apart by."""

    ray: RayNodes = field(kw_only=True)
    groups: Mapping[str, int] = field(kw_only=True)
    _running: dict[str, RayNode] = field(default_factory=dict, init=False)
    _told_s: dict[str, float] = field(default_factory=dict, init=False)

    def runs(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        """As KubeRay's probes see it: a worker's proxy answers."""
        group, name = _group(pod), pod["metadata"]["name"]
        if name not in self._running or not self._running[name].is_there():
            self._running[name] = self._started_head() if group == _HEAD else self._started_worker(pod)
        return group == _HEAD or self._proxy_answers(group)

    def has_ended(self, pod: Mapping[str, Any], age_ticks: int) -> bool:
        name = pod["metadata"]["name"]
        node = self._running.get(name)
        if node is None:
            return True
        if name not in self._told_s:
            self._told_s[name] = time.monotonic()
            node.terminate()
        grace_s = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
        if node.is_there() and time.monotonic() < self._told_s[name] + grace_s:
            return False
        node.kill()
        return True

    def endpoints(self) -> list[int]:
        """Ports of the proxies to which a Service leads."""
        workers = [p for p in self.pods() if _group(p) != _HEAD]
        return [self.ray.worker_port(self.groups[_group(p)]) for p in workers if is_ready(p)]

    def is_draining(self, group: str) -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in self.pods(group))

    def images(self) -> set[str]:
        return {p["spec"]["containers"][0]["image"] for p in self.pods()}

    def _started_head(self) -> RayNode:
        """The first one runs as soon as there are nodes."""
        return self.ray.start_head() if self.ray.head in self._running.values() else self.ray.head

    def _started_worker(self, pod: Mapping[str, Any]) -> RayNode:
        told = {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"] if "value" in v}
        variables = {name: v for name, v in told.items() if name.startswith(_OF_RAY) and name not in _NOT_HERE}
        group = _group(pod)
        node = self.ray.add(group, number=self.groups[group], variables=variables)
        node.wait_until_started()
        return node

    def _proxy_answers(self, group: str) -> bool:
        url = f"http://127.0.0.1:{self.ray.worker_port(self.groups[group])}/-/healthz"
        try:
            return httpx.get(url, timeout=_PROBE_S, trust_env=False).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def ticking(pods: RunningPods) -> Iterator[None]:
    """Raises at its end what ended the ticks."""
    ends = threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        try:
            while not ends.wait(_TICK_S):
                pods.tick()
        except Exception as error:  # told by the thread that waits for the test
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        if failed:
            raise failed[0]


def _group(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["ray.io/group"])
