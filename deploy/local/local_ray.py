"""A Ray cluster for as long as a command runs. Import it only after the environment is set: ray reads it on import."""

import atexit
import logging
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path

import ray
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.exceptions import RayError

from deploy.environment import export_environment, ray_reconnect_s, replace_environment
from deploy.errors import ClusterUnreachable, FleetStartError
from deploy.local.head_watch import ending_without_head
from deploy.local.native_errors import silence_native_errors
from deploy.local.ray_environment import haproxy_files
from deploy.local.session_folders import make_session_folder, remove_left_behind
from deploy.local.stop_signals import terminable
from deploy.local.supervisor import Supervisor

_SESSIONS = Path("/tmp")
_SESSION_BYTES = 16 * 1024**2  # what logs take in the first minutes; with less nothing starts, and nothing says so
_THREADS = 500  # of a fleet of one unit and two gateways, and of Ray
_REMOVE_ATTEMPTS = 20
_REMOVE_PAUSE_S = 0.25
# Logical CPUs beyond what the fleet file asks for: nodes that are applied later must find room on this one machine.
_SPARE_CPUS = 64
_OBJECT_STORE_BYTES = 100_000_000  # tokens and prompts travel outside it
_RAY_RAISES = (RayError, RuntimeError, ConnectionError, ValueError, OSError)
_BEFORE_RAY_S = 8.0  # a look and a try to connect, and some time to say so before Ray ends the process
# One try, of some 40 s, where Ray's own twenty take a quarter of an hour.
_ONE_TRY: Mapping[str, str] = {"RAY_gcs_server_port_wait_time_s": "1"}


@contextmanager
def local_ray(*, num_cpus: float, is_verbose: bool, supervisor: Supervisor) -> Iterator[Path]:
    """Starts a cluster of one node; yields the folder of its logs, which goes with it."""
    # Sockets in it have paths of at most 107 bytes: no deep TMPDIR. Ray lets everybody into its own folder: it lies in
    # one for its owner only.
    remove_left_behind(_SESSIONS)
    folder = _session_folder()
    session = folder / "ray"
    replace_environment(haproxy_files(session))  # those of a fleet that this process had before are gone
    is_up = False
    try:
        # Ray puts the folder that this runs in first on the workers' path: not the user's, which may hold a `queue.py`.
        with _start_errors(), _interrupted_by_its_handler(), chdir(session), _deaf_to_hangups():
            ray.init(
                address="local",
                num_cpus=math.ceil(num_cpus) + _SPARE_CPUS,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=is_verbose,
                logging_level=_level(is_verbose),
                _temp_dir=str(session),
            )
        is_up = True
        quiet_serve(is_verbose)
        supervisor.watch(folder)
        yield session / "session_latest" / "logs"
    finally:
        supervisor.now_ending()
        if supervisor.is_lost:  # what is left of it answers nobody
            if not is_verbose:
                silence_native_errors()
            supervisor.kill_cluster()
            atexit.unregister(ray.shutdown)
        else:
            ray.shutdown()
            if not is_up:  # of one that was interrupted as it started, Ray leaves agents
                supervisor.kill_cluster()
        if not (is_verbose and _is_failing()):  # who asked for logs may want to read them
            _remove(folder)


def _session_folder() -> Path:
    remedy = "Ray has its session, its sockets and its logs there: make room there"
    if (left_bytes := shutil.disk_usage(_SESSIONS).free) < _SESSION_BYTES:
        raise FleetStartError(reason=f"{_SESSIONS} has {left_bytes / 1e6:.1f} MB left", remedy=remedy)
    try:
        folder = make_session_folder(_SESSIONS)
        (folder / "ray").mkdir()
    except OSError as error:
        raise FleetStartError(reason=f"{_SESSIONS} cannot be written: {error.strerror}", remedy=remedy) from error
    return folder


@contextmanager
def joined_ray(address: str, *, is_verbose: bool) -> Iterator[None]:
    """A cluster that is already there. Raises ClusterUnreachable: what listens at the address is none, or does not let
    this process in.
    """
    export_environment(_ONE_TRY)
    try:
        with tempfile.TemporaryDirectory(prefix="muxfleet-") as nothing, chdir(nothing):
            ray.init(address=address, log_to_driver=is_verbose, logging_level=_level(is_verbose))
    except _RAY_RAISES as error:
        raise ClusterUnreachable(address=address, reason=_in_one_line(error)) from error
    try:
        quiet_serve(is_verbose)
        patience_s = ray_reconnect_s() - _BEFORE_RAY_S
        # of Ray's own handler, which fills the terminal with its stack
        with terminable(), ending_without_head(cluster_address(), patience_s=patience_s):
            yield
    finally:
        ray.shutdown()


def visible_gpus() -> int:
    """NVIDIA GPUs of this machine that Ray would give to actors."""
    found = NvidiaGPUAcceleratorManager.get_current_node_num_accelerators()
    allowed = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    return int(found) if allowed is None else min(int(found), len(allowed))


def cluster_address() -> str:
    """Returns the address of the cluster that this process is in."""
    return str(ray.get_runtime_context().gcs_address)


def quiet_serve(is_verbose: bool) -> None:
    """Serve's client logs every step of a deployment to the terminal."""
    from ray import serve  # takes a second, and may be under way beside `local_ray`; it sets its logger's level

    if not is_verbose:
        logging.getLogger(serve.__name__).setLevel(logging.CRITICAL)
        logging.getLogger("ray").setLevel(logging.CRITICAL)


@contextmanager
def _deaf_to_hangups() -> Iterator[None]:
    """What is started meanwhile, and what that starts, outlives the SIGHUP that a closed terminal sends to all that it
    runs, as Ray sees to it for SIGINT: this process ends its cluster, and streams in it have their time. Other threads
    of this process take a SIGHUP that comes meanwhile.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupted_by_its_handler() -> Iterator[None]:
    """SIGTERM finds a handler of Ray's while that starts, which exits with a code of its own."""
    try:
        yield
    except SystemExit as asked:
        raise KeyboardInterrupt from asked


@contextmanager
def _start_errors() -> Iterator[None]:
    """Ray raises built-in exceptions for what is wrong with the machine or the address, and `Exception` itself for what
    it started and does not hear of.
    """
    try:
        yield
    except Exception as error:
        raise FleetStartError(reason=f"Ray does not start: {_in_one_line(error)}", remedy=_remedy()) from error


def _remedy() -> str:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() and most != resource.RLIM_INFINITY and most < _THREADS:
        return (
            f"this user may have {most} processes and threads (`ulimit -u`), a small fleet has {_THREADS}: allow more"
        )
    return "run again with -v for the logs"


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _level(is_verbose: bool) -> int:
    return logging.INFO if is_verbose else logging.CRITICAL


def _remove(folder: Path) -> None:
    """Processes that are just ending may still write there."""
    for _ in range(_REMOVE_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVE_PAUSE_S)


def _is_failing() -> bool:
    return sys.exc_info()[0] is not None
