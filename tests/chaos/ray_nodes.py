"""A Ray cluster of several raylets on this machine, each of which can be lost as a node is."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_BIN = Path(sys.executable).parent
_OBJECT_STORE_BYTES = 100_000_000
_START_S = 60.0


class RayNode:
    """`ray start --block` and all that runs on it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [_BIN / "ray", "start", "--block", f"--object-store-memory={_OBJECT_STORE_BYTES}", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
        except psutil.NoSuchProcess:
            return []
        return [root, *root.children(recursive=True)]

    def kill(self) -> None:
        """At once and without a word, as when the power goes."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # its parent's death has taken it along
                process.kill()
        psutil.wait_procs(processes, timeout=10)
        self._process.wait(10)

    def terminate(self) -> None:
        """As Kubernetes ends a pod: with a signal, on which Ray drains the node."""
        self._process.terminate()

    def is_there(self) -> bool:
        return self._process.poll() is None


class RayNodes:
    """A head, and workers that come and go. `ports`: six in a row that are free."""

    def __init__(self, folder: Path, *, ports: int, drain_s: float = 0.0) -> None:
        """`drain_s`: how long Ray drains a node that is terminated."""
        gcs, dashboard, agent, metrics, client = (str(ports + i) for i in range(5))
        self._metrics, self._worker_proxy = ports + 3, ports + 5
        self._address = f"127.0.0.1:{gcs}"
        self._clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "disabled",
            "MUXFLEET_ALLOW_OPEN_RAY": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": f"{drain_s:g}",
            "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        }
        self.environment = self._clean | {"RAY_ADDRESS": self._address}
        arguments = [
            "--head",
            f"--port={gcs}",
            "--include-dashboard=false",
            f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={agent}",
            f"--metrics-export-port={metrics}",
            f"--ray-client-server-port={client}",
            f"--temp-dir={folder}",
            "--num-cpus=16",
            "--labels=place=stays",
        ]
        self._nodes = [RayNode(arguments, self._clean)]
        self._wait_for_head(int(gcs))

    def _wait_for_head(self, port: int) -> None:
        """`muxfleet up` refuses an address at which nothing answers."""
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            time.sleep(0.1)
        self.stop()
        raise TimeoutError(f"Ray's head does not answer on port {port}")

    @property
    def metrics_url(self) -> str:
        """Where Prometheus asks the head for Ray's own metrics."""
        return f"http://127.0.0.1:{self._metrics}/metrics"

    def add(self) -> RayNode:
        """A node with the label place=goes. On one machine its HTTP proxy needs a port of its own."""
        environment = self._clean | {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self._worker_proxy)}
        node = RayNode([f"--address={self._address}", "--num-cpus=1", "--labels=place=goes"], environment)
        self._nodes.append(node)
        return node

    def processes(self) -> list[psutil.Process]:
        return [process for node in self._nodes for process in node.processes()]

    def stop(self) -> None:
        for node in reversed(self._nodes):
            node.kill()
