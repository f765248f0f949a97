"""Checks what can be known to be wrong before Ray starts. Each check raises an error with the remedy."""

import resource
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from deploy.errors import ClusterUnreachable, FleetStartError, SourceNotFound
from deploy.fleet_file.settings import FleetFile

_CONNECT_S = 5.0
_NOTES_BYTES = 64 * 1024  # an empty file can be made on a disk that is full
_OPEN_FILES = 512


def check_notes_folder(folder: Path) -> None:
    """`folder`: where a running fleet is noted."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_NOTES_BYTES))
    except OSError as error:
        raise FleetStartError(
            reason=f"{folder} cannot be written: {error.strerror}",
            remedy="`muxfleet apply` finds fleets by what is noted there; make room there, or set XDG_CACHE_HOME to a "
            "folder of yours",
        ) from error


def check_docstrings(optimize: int) -> None:
    """`optimize` is Python's level, which what is started here has, too."""
    if optimize > 1:
        raise FleetStartError(
            reason="Python leaves docstrings out (PYTHONOPTIMIZE=2 or -OO), and Ray's agents do not start without",
            remedy="unset PYTHONOPTIMIZE",
        )


def check_open_files(most: int) -> None:
    """`most`: how many files a process may have open where it asks for more. For a fleet behind HAProxy."""
    if most != resource.RLIM_INFINITY and most < _OPEN_FILES:
        raise FleetStartError(
            reason=f"a process may have {most} files open (`ulimit -Hn`), and HAProxy needs more",
            remedy=f"allow {_OPEN_FILES} or more, or set gateway.proxy: python",
        )


def check_weights(fleet: FleetFile) -> None:
    """Checks the weights of folders where every pool loads them with muxfleet's own engine: others may read other
    formats, or none.
    """
    if not all(fleet.backend(pool).reads_safetensors for pool in fleet.pools):
        return
    for model in fleet.models:
        folder = Path(model.source)
        if not folder.is_absolute() or folder.is_file():  # a Hugging Face id, or a GGUF file, which is whole
            continue
        for what, patterns in (("weights", ("*.safetensors",)), ("tokenizer", ("tokenizer*", "vocab.*"))):
            if what == "tokenizer" and model.base is not None:  # an adapter has its base's
                continue
            if not any(next(folder.glob(pattern), None) for pattern in patterns):
                raise SourceNotFound(
                    model=model.id,
                    source=model.source,
                    remedy=f"it has a config.json but no {what} ({' or '.join(patterns)}); fetch the checkpoint again",
                )


def check_gpus(fleet: FleetFile, count: Callable[[], int]) -> None:
    """`count` is asked only where the fleet needs GPUs."""
    needed = {p.name: p.nodes.min * p.gpus_per_node for p in fleet.pools if p.device == "cuda"}
    if not needed or (found := count()) >= sum(needed.values()):
        return
    pools = ", ".join(f"pool {name!r} asks for {gpus}" for name, gpus in needed.items())
    raise FleetStartError(
        reason=f"{pools} with device: cuda, and this machine has {found} NVIDIA GPUs that this process may use",
        remedy="check `nvidia-smi` and CUDA_VISIBLE_DEVICES, set device: cpu or simulated, or RAY_ADDRESS to a cluster",
    )


def check_cluster_answers(address: str) -> None:
    """Ray itself would try for a quarter of an hour. `address` is that of a head."""
    if address == "auto":  # Ray finds out by itself, at once
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        raise ClusterUnreachable(address=repr(address), reason="this is no host:port")
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            pass
    except OSError as error:
        raise ClusterUnreachable(address=address, reason=error.strerror or str(error)) from error
