"""Environment of every process of a Ray cluster that muxfleet starts. Ray reads it when it is imported."""

from collections.abc import Mapping, Sequence
from pathlib import Path

# Serve's replicas then call each other by gRPC, which goes through `http_proxy` where that is set, to loopback, too;
# an empty `grpc_proxy` comes before it and means none.
HAPROXY: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "grpc_proxy": "",
}
"""The same on the head, on workers and where an application is built."""

# On Linux, too, the node's address is then 127.0.0.1, and Ray listens nowhere else.
_LOOPBACK: Mapping[str, str] = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

# What Ray has every worker call when it starts: the name is that of ray.init's `worker_process_setup_hook`, which it
# would give to the workers of its own job only.
_LEAN_WORKERS: Mapping[str, str] = {
    "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "muxfleet.lean_serve.leave_pandas_out",
}

_ALL_LOGS: Mapping[str, str] = {"RAY_DEDUP_LOGS": "0"}
# The only way to keep notices of the raylet ("a worker died ...") off a driver's terminal: `log_to_driver` does not.
_NO_LOGS: Mapping[str, str] = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*"}


def ray_environment(
    *, proxy: str, auth_token: str, free_ports: Sequence[int], haproxy: Path | None, is_verbose: bool
) -> Mapping[str, str]:
    """`free_ports` are three, for HAProxy's own metrics and statistics and for the proxy that it falls back on. They
    are fixed ones otherwise, and that of the proxy is shared with whoever listens there, too, as another fleet's.
    `haproxy` is the program to run as HAProxy, None for Ray's own.
    """
    metrics_port, stats_port, fallback_port = free_ports
    variables: dict[str, str] = {
        # Without it Ray writes a token to the user's home and every later `ray` command asks for it.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": auth_token,
        **_LOOPBACK,
        **_LEAN_WORKERS,
        # Serve asks its proxies every 10 s otherwise, and takes one for gone when three answers in a row were bad. One
        # that stands is as safe as before: each answer is waited for up to 10 s.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5",
        # Replicas and handles wake up ten times a second otherwise, to tell counts that Ray passes on every 10 s.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
        # A replica whose loop stands is ended at once: asked gently, it would have until the end of its drain.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
        # What workers say, the lines of `gateway.request_log` among it, goes into one file each that grows for ever:
        # without a bound of one's own Ray begins no new ones.
        "RAY_ROTATION_MAX_BYTES": str(64 * 1024**2),
        "RAY_ROTATION_BACKUP_COUNT": "4",
        # Ray's default of 15 lets any other program starve the engine.
        "RAY_worker_niceness": "0",
        # A raylet that stands for some 65 s, as where its disk or its machine does, is taken for a lost node by Ray's
        # default of 5, and ends with all that it runs. There is no other node here, and `up` sees itself who has died.
        "RAY_health_check_failure_threshold": "30",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        **(_ALL_LOGS if is_verbose else _NO_LOGS),
        # HAProxy mode waits 30 s for clients of a gateway that goes; a local fleet has none worth it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }
    if proxy != "haproxy":
        return variables
    ports = {
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
    }
    program = {} if haproxy is None else {"RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy)}
    return {**variables, **HAPROXY, **ports, **program}


def haproxy_files(folder: Path) -> Mapping[str, str]:
    """Names where HAProxy's files lie, in a folder of the node's in this one. Serve has them in /tmp/haproxy-serve,
    which is of the user who came first: no other's HAProxy would start on this machine.
    """
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
    }


def notices_environment(*, is_verbose: bool) -> Mapping[str, str]:
    """Returns what keeps Ray's notices off the terminal of a command that joins any cluster, or has them all come."""
    return _ALL_LOGS if is_verbose else _NO_LOGS


def joining_environment(*, auth_token: str) -> Mapping[str, str]:
    """Returns the environment of a command that changes a cluster of `muxfleet up`. It comes before the user's own: a
    token there is of another cluster.
    """
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": auth_token}
    return {**authentication, **_LOOPBACK, "RAY_USAGE_STATS_ENABLED": "0", **_NO_LOGS}
