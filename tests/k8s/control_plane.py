"""A real API server with etcd and the controllers of Kubernetes, for tests that otherwise ask stand-ins. No pod runs.

`MUXFLEET_CONTROL_PLANE` names a folder with `kube-apiserver` and `kube-controller-manager`, as in Kubernetes' server
archive; scripts/control_plane.sh builds them from Debian's sources. etcd is on the PATH.
"""

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from standin_server import kubeconfig

FOLDER = os.environ.get("MUXFLEET_CONTROL_PLANE")
_TOKEN = "administrator"  # of a server that listens on loopback only
_START_S = 60.0
_ONE_PORT = 24  # the minor version since which controllers have no second port, which two of them would share
_KEYS = """
openssl genrsa -out account.key 2048
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=tests -days 2
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server
echo subjectAltName=IP:127.0.0.1 > names
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile names
openssl req -newkey rsa:2048 -nodes -keyout client.key -out client.csr -subj /O=system:masters/CN=admin
openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out client.crt -days 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    address: str
    authority: Path

    def client(self, token: str = _TOKEN) -> httpx.Client:
        return httpx.Client(
            base_url=self.address,
            verify=ssl.create_default_context(cafile=self.authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=30.0,
            trust_env=False,
        )

    def ray_variables(self) -> Mapping[str, str]:
        """By which Ray's autoscaler reaches it, as an administrator."""
        host, port = self.address.removeprefix("https://").split(":")
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            "RAY_KUBERAY_CA_CERT_PATH": str(self.authority),
            "RAY_KUBERAY_CLIENT_CERT_PATH": str(self.authority.with_name("client.crt")),
            "RAY_KUBERAY_CLIENT_KEY_PATH": str(self.authority.with_name("client.key")),
        }

    def kubeconfig(self) -> str:
        return kubeconfig(self.address, authority=self.authority, token=_TOKEN)


@contextmanager
def running_control_plane(binaries: Path, folder: Path) -> Iterator[ControlPlane]:
    """All that it writes is in `folder`. Nodes are never lost: nobody beats for them."""
    subprocess.run(["bash", "-ec", _KEYS], cwd=folder, check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
    etcd, peer, port, controllers = _free_ports(4)
    plane = ControlPlane(address=f"https://127.0.0.1:{port}", authority=folder / "ca.crt")
    (folder / "kubeconfig").write_text(plane.kubeconfig())
    with ExitStack() as running:
        client = running.enter_context(plane.client())
        running.enter_context(_running(folder, "etcd", _etcd(etcd, peer)))
        running.enter_context(_running(folder, "server", _server(binaries, etcd, port)))
        _wait_for(client, folder)
        running.enter_context(_running(folder, "controllers", _controllers(binaries, controllers)))
        yield plane


def _etcd(port: int, peer: int) -> Sequence[str]:
    address, of_peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return (
        "etcd", "--data-dir=etcd", f"--listen-client-urls={address}", f"--advertise-client-urls={address}",
        f"--listen-peer-urls={of_peer}", f"--initial-advertise-peer-urls={of_peer}",
        f"--initial-cluster=default={of_peer}",
    )  # fmt: skip


def _server(binaries: Path, etcd: int, port: int) -> Sequence[str]:
    return (
        str(binaries / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1",
        f"--secure-port={port}", "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--cert-dir=own",
        "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-signing-key-file=account.key", "--service-account-key-file=account.key",
        "--authorization-mode=RBAC", "--token-auth-file=tokens.csv", "--client-ca-file=ca.crt",
        "--allow-privileged",
    )  # fmt: skip


def _controllers(binaries: Path, port: int) -> Sequence[str]:
    program = str(binaries / "kube-controller-manager")
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    is_old = int(version.split(".")[1]) < _ONE_PORT
    return (
        program, *(("--port=0",) if is_old else ()), "--kubeconfig=kubeconfig", "--bind-address=127.0.0.1",
        f"--secure-port={port}", "--cert-dir=own", "--service-account-private-key-file=account.key",
        "--root-ca-file=ca.crt", "--leader-elect=false", "--controllers=*,-nodelifecycle",
    )  # fmt: skip


def _free_ports(count: int) -> Sequence[int]:
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def _running(folder: Path, name: str, command: Sequence[str]) -> Iterator[None]:
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(client: httpx.Client, folder: Path) -> None:
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s:
        try:
            if client.get("/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise TimeoutError(
        f"the API server is not ready after {_START_S:g} s: {(folder / 'server.log').read_text()[-2000:]}"
    )
