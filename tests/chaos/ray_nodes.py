"""A Ray cluster of several raylets on this machine, each of which can be lost as a node is."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from deploy.local.haproxy import program_path
from deploy.local.ray_environment import HAPROXY

_BIN = Path(sys.executable).parent
_OBJECT_STORE_BYTES = 100_000_000
_START_S = 60.0
_OUTPUT_BYTES = 100_000
_LOG_BYTES = 6_000


class RayNode:
    """`ray start --block` and all that runs on it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the node
        self._process = subprocess.Popen(
            [_BIN / "ray", "start", "--block", f"--object-store-memory={_OBJECT_STORE_BYTES}", *arguments],
            env=environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_started(self) -> None:
        """Of two that start on one machine at once, one may end: both take the same names of sockets."""
        until_s = time.monotonic() + _START_S
        while not self.has_started:
            if time.monotonic() > until_s or not self.is_there():
                raise TimeoutError(self.output)
            time.sleep(0.1)

    @property
    def has_started(self) -> bool:
        return "Ray runtime started" in self.output

    @property
    def output(self) -> str:
        return os.pread(self._output.fileno(), _OUTPUT_BYTES, 0).decode()

    def processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
        except psutil.NoSuchProcess:
            return []
        return [root, *root.children(recursive=True)]

    @property
    def node_id(self) -> str | None:
        """Ray's; None before its raylet runs, and when it has ended."""
        for process in self.processes():
            with suppress(psutil.Error):
                for argument in process.cmdline():
                    if argument.startswith("--node_id="):
                        return argument.removeprefix("--node_id=")
        return None

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


@contextmanager
def ray_nodes(folder: Path | None = None, **options: Any) -> Iterator["RayNodes"]:
    """`RayNodes` with these options, in a folder that is gone with them unless another is given."""
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(short_folder())
        nodes = RayNodes(folder, **options)
        stack.callback(nodes.stop)
        yield nodes


@contextmanager
def short_folder() -> Iterator[Path]:
    """Paths of sockets have at most 107 bytes: pytest's own folder is too long beside xdist."""
    with tempfile.TemporaryDirectory(prefix="mux-ray-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class RayNodes:
    """A head, and workers that come and go. `ports`: seven free ones in a row; with HAProxy two more of each node."""

    def __init__(
        self,
        folder: Path,
        *,
        ports: int,
        drain_s: float = 0.0,
        head_cpus: int = 16,
        redis: str | None = None,
        haproxy: bool = False,
        autoscaling: Mapping[str, Any] | None = None,
        is_scaled_by_kuberays: bool = False,
        variables_of_head: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`drain_s`: how long Ray drains a node that is terminated. `redis`: the address of the head's store, which a
        next head finds again; its workers then wait for that as long as KubeRay tells them to. `haproxy`: each node's
        proxy is one, as in the chart's pods. `autoscaling`: the configuration of the head's own autoscaler, which it
        has none of where it `is_scaled_by_kuberays`.
        """
        gcs, self._dashboard, agent, self._metrics, client, self._worker_proxies = (ports + i for i in range(6))
        self._folder, self._gcs = folder, gcs
        self._haproxy_ports = ports + 7 if haproxy else None
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
        if haproxy:
            program = program_path()
            assert program is not None, "muxfleet is not installed in this environment"
            del self._clean["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"]
            self._clean |= {**HAPROXY, "RAY_SERVE_HAPROXY_BINARY_PATH": str(program)}
        self._of_head = self._clean
        if redis is not None:
            self._of_head = self._clean | {"RAY_REDIS_ADDRESS": redis, "RAY_external_storage_namespace": "fleet"}
            self._clean = self._clean | {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
        self.environment = self._clean | {"RAY_ADDRESS": self._address}
        self._head_arguments = [
            "--head",
            f"--port={gcs}",
            f"--include-dashboard={redis is not None or haproxy}",
            f"--dashboard-port={self._dashboard}",
            f"--dashboard-agent-listen-port={agent}",
            f"--metrics-export-port={self._metrics}",
            f"--ray-client-server-port={client}",
            f"--num-cpus={head_cpus}",
            "--labels=place=stays" if head_cpus else "--labels=place=head",
        ]
        if is_scaled_by_kuberays:
            self._head_arguments.append("--no-monitor")
        if autoscaling is not None:
            config = folder / "autoscaling.json"
            config.write_text(json.dumps(autoscaling))
            self._head_arguments.append(f"--autoscaling-config={config}")
        self._of_head = self._of_head | variables_of_head
        self._heads = 0
        self._nodes: list[RayNode] = []
        self.head = self.start_head()

    def start_head(self) -> RayNode:
        """Each in a folder of its own, as in a pod of its own: in its predecessor's Ray finds that one's address, and
        of its workers that it still runs here.
        """
        self._heads += 1
        folder = self._folder / f"h{self._heads}"
        self.head = RayNode(
            [*self._head_arguments, f"--temp-dir={folder}"], self._of_head | self._haproxy_of_its_own(0)
        )
        self._nodes.append(self.head)
        self._wait_for_head(self._gcs)
        return self.head

    def head_says(self) -> str:
        """The end of all that tells why the newest head does not answer: its own words, and the logs of its store and
        of what answers for Serve.
        """
        logs = self._folder / f"h{self._heads}" / "session_latest" / "logs"
        told = [self.head.output]
        for pattern in ("gcs_server.out", "dashboard.log", "dashboard_ServeHead*", "serve/controller_*"):
            for file in sorted(logs.glob(pattern)):
                with file.open("rb") as log:
                    log.seek(max(0, file.stat().st_size - _LOG_BYTES))
                    told.append(f"--- {file.name}\n{log.read().decode(errors='replace')}")
        return "\n".join(told)

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
    def dashboard_url(self) -> str:
        """Where `serve deploy` goes, for a head with Redis."""
        return f"http://127.0.0.1:{self._dashboard}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus asks the head for Ray's own metrics."""
        return f"http://127.0.0.1:{self._metrics}/metrics"

    def add(
        self, place: str = "goes", *, number: int = 0, variables: Mapping[str, str] = MappingProxyType({})
    ) -> RayNode:
        """A node with that label. On one machine its HTTP proxy needs a port of its own, which `number` makes."""
        environment = self._clean | variables | {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self.worker_port(number))}
        environment |= self._haproxy_of_its_own(number + 1)
        node = RayNode([f"--address={self._address}", "--num-cpus=1", f"--labels=place={place}"], environment)
        self._nodes.append(node)
        return node

    def _haproxy_of_its_own(self, number: int) -> dict[str, str]:
        """Nodes of one machine share its ports."""
        if self._haproxy_ports is None:
            return {}
        return {
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(self._haproxy_ports + 2 * number),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(self._haproxy_ports + 2 * number + 1),
        }

    def drain(self, node: RayNode, *, deadline_s: int) -> None:
        """Says, as the provider of a spot node does, that it will be taken away by then; who says so does it."""
        assert node.node_id is not None
        why = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot")
        until = f"--deadline-remaining-seconds={deadline_s}"
        subprocess.run(
            [_BIN / "ray", "drain-node", f"--address={self._address}", f"--node-id={node.node_id}", *why, until],
            env=self._clean,
            check=True,
            capture_output=True,
            timeout=_START_S,
        )

    def worker_port(self, number: int) -> int:
        return self._worker_proxies + number

    def processes(self) -> list[psutil.Process]:
        return [process for node in self._nodes for process in node.processes()]

    def stop(self) -> None:
        for node in reversed(self._nodes):
            node.kill()
