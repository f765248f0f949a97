"""The only place that reads the environment for configuration."""

import os
from collections.abc import Mapping
from pathlib import Path

from deploy.errors import OptionNotUsable

_RAY_RECONNECT, _RAY_RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0


def cache_folder() -> Path:
    """Returns where generated checkpoints live: the XDG cache. Raises OptionNotUsable: nobody says where that is."""
    return _folder_of("XDG_CACHE_HOME", "~/.cache")


def state_folder() -> Path:
    """Returns where a control loop keeps its state by default: XDG's folder for state. Raises OptionNotUsable."""
    return _folder_of("XDG_STATE_HOME", "~/.local/state")


def _folder_of(variable: str, default: str) -> Path:
    try:
        return Path(os.environ.get(variable) or default).expanduser() / "muxfleet"
    except RuntimeError as error:  # neither HOME nor the system's users say where it is
        remedy = f"this user has no home; set HOME, or {variable} to a folder of yours"
        raise OptionNotUsable(option="HOME", value="(not set)", remedy=remedy) from error


def running_fleets_folder() -> Path:
    """Returns where `muxfleet up` notes what it runs on this machine."""
    return cache_folder() / "fleets"


def api_key(given: str | None = None) -> str | None:
    """Returns the key for requests to a fleet's gateway: the one given, or that of MUXFLEET_API_KEY.

    Raises OptionNotUsable: no header can carry it.
    """
    key = given or os.environ.get("MUXFLEET_API_KEY") or None
    if key is not None and not (key.isascii() and key.isprintable()):
        remedy = "a key is printable ASCII on one line, as `muxfleet keys new` prints it"
        raise OptionNotUsable(option="--api-key, MUXFLEET_API_KEY", value="(not shown)", remedy=remedy)
    return key


def bearer_headers(given: str | None = None) -> Mapping[str, str]:
    """Returns the HTTP headers that carry `api_key`."""
    key = api_key(given)
    return {} if key is None else {"authorization": f"Bearer {key}"}


def otlp_endpoint() -> str | None:
    """Returns where OpenTelemetry traces go, from OTEL_EXPORTER_OTLP_ENDPOINT of the process that asks."""
    return os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def ray_address() -> str | None:
    """An existing cluster to join, from RAY_ADDRESS. None also for `local`: by that Ray means one of this machine that
    is started now.
    """
    address = os.environ.get("RAY_ADDRESS") or None
    return None if address == "local" else address


def ray_reconnect_s() -> float:
    """Returns how long Ray waits for a head that is gone before it ends the process that waits."""
    try:
        return float(os.environ.get(_RAY_RECONNECT) or _RAY_RECONNECT_S)
    except ValueError:  # Ray refuses it itself
        return _RAY_RECONNECT_S


def ray_auth_token() -> str:
    """Returns the token of the cluster that this process started or joined; empty without one."""
    return os.environ.get("RAY_AUTH_TOKEN", "")


def kubernetes_address() -> str | None:
    """Returns the API server of the cluster whose pod this process runs in; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def allows_open_ray() -> bool:
    """MUXFLEET_ALLOW_OPEN_RAY=1 on a node of a Ray cluster: whoever started that knows that it asks for no token."""
    return os.environ.get("MUXFLEET_ALLOW_OPEN_RAY") == "1"


def asks_for_compiled_modules() -> bool | None:
    """MUXFLEET_COMPILED=1: what `muxfleet compile` has compiled runs in place of its Python. None: it is not set."""
    value = os.environ.get("MUXFLEET_COMPILED")
    return None if value is None else value == "1"


def with_temporary_files_in(folder: Path) -> Mapping[str, str]:
    """This process's environment for a child that puts its temporary files there."""
    return {**os.environ, "TMPDIR": str(folder)}


def whole_environment() -> Mapping[str, str]:
    """Returns a copy, for who wants it back after others have set variables of their own."""
    return dict(os.environ)


def export_environment(variables: Mapping[str, str]) -> None:
    """Sets variables for this process and those it starts. What the user has set already stays."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def replace_environment(variables: Mapping[str, str]) -> None:
    """Sets variables for this process and those it starts, whatever they were."""
    os.environ.update(variables)
