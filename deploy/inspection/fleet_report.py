"""Asks a running fleet over HTTP what its control loop knows, plans and decided, and its units with it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx
import msgspec

from deploy.bounded_transport import bounded_get
from deploy.control.fleet_status import FleetStatus
from deploy.environment import bearer_headers
from deploy.errors import ControlLoopUnreachable, FleetUnreachable
from pdmux_actor.scheduling.decision import LogExcerpt
from placement.plan_explanation import Explanation
from router.telemetry.fleet_event import FleetEvent
from router.view import KnownFleet

_TIMEOUT_S = 10.0
_DECISIONS_TIMEOUT_S = 20.0
_PATH = "/fleet"
_KNOWN_PATH = "/fleet/known"
_WHAT = f"{_PATH} is not a fleet"
_NO_GATEWAY = "no gateway is there: one of a fleet that starts will be, when `muxfleet up` says that it serves"


class _Refusal(msgspec.Struct):
    message: str
    code: str | int | None = None


class _RefusalBody(msgspec.Struct):
    error: _Refusal


def fleet_report(url: str) -> FleetStatus:
    """Raises FleetUnreachable: nobody answers there, or not as a fleet's gateway."""
    return cast(FleetStatus, _asked(url, _PATH, {}, FleetStatus, _WHAT))


def fleet_of_gateway(url: str) -> KnownFleet:
    """Asks what the gateway knows without its control loop. Raises FleetUnreachable."""
    return cast(KnownFleet, _asked(url, _KNOWN_PATH, {}, KnownFleet, f"{_KNOWN_PATH} is not a fleet"))


def explanation(url: str, model: str) -> Explanation | None:
    """Asks the running fleet for an explanation; None for a model that it does not plan for. Raises
    FleetUnreachable.
    """
    return cast(Explanation | None, _asked(url, _PATH, {"explain": model}, Explanation | None, _WHAT))


def fleet_events(url: str, *, since_s: int) -> tuple[FleetEvent, ...]:
    """Returns the events of the last `since_s` seconds, oldest first. Raises FleetUnreachable."""
    path, kind = f"{_PATH}/events", tuple[FleetEvent, ...]
    return cast(tuple[FleetEvent, ...], _asked(url, path, {"since_s": str(since_s)}, kind, f"{path} is not of a fleet"))


def unit_decisions(url: str, unit: str, *, last: int) -> LogExcerpt:
    """Raises FleetUnreachable: nobody answers, or the unit does not."""
    path, what = f"/units/{quote(unit, safe='')}/decisions", "is not a decision log"
    told = _asked(url, path, {"last": str(last)}, LogExcerpt, f"{path} {what}", timeout_s=_DECISIONS_TIMEOUT_S)
    return cast(LogExcerpt, told)


def _asked(
    url: str,
    path: str,
    params: Mapping[str, str],
    kind: Any,  # noqa: ANN401  see `decoded`
    what: str,
    *,
    timeout_s: float = _TIMEOUT_S,
) -> Any:  # noqa: ANN401
    with reaching(url):
        response = bounded_get(path_of(url, path), params=params, headers=bearer_headers(), timeout_s=timeout_s)
    check_answer(url, path, response)
    return decoded(url, response.content, kind, what)


def path_of(url: str, path: str) -> str:
    """Returns the address of a path of the gateway at `url`, which may be that of its API."""
    return f"{url.rstrip('/').removesuffix('/v1')}{path}"


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Makes FleetUnreachable of what a request raises."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise FleetUnreachable(address=url, reason="not a URL such as http://127.0.0.1:8000") from error
    except httpx.RequestError as error:
        raise FleetUnreachable(address=url, reason=str(error) or type(error).__name__) from error


def check_answer(url: str, path: str, response: httpx.Response) -> None:
    """Raises FleetUnreachable, of which ControlLoopUnreachable is one. The response has been read."""
    if response.status_code == 200:
        return
    refusal = _refusal(response)
    if refusal is not None and refusal.code == "control_loop_silent":
        raise ControlLoopUnreachable(address=url, reason=refusal.message)
    if refusal is not None:
        raise FleetUnreachable(address=url, reason=refusal.message)
    remedy = f": {_NO_GATEWAY}" if response.status_code == 404 else ""
    raise FleetUnreachable(address=url, reason=f"{path} answers {response.status_code}{remedy}")


def decoded(url: str, content: bytes, kind: Any, what: str) -> Any:  # noqa: ANN401  msgspec decodes unions too, which type[T] is not
    """Raises FleetUnreachable, which begins with `what`: "/fleet is not a fleet"."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise FleetUnreachable(address=url, reason=f"{what} of this version: {error}") from error


def _refusal(response: httpx.Response) -> _Refusal | None:
    """None: whoever answers is no gateway."""
    try:
        return msgspec.json.decode(response.content, type=_RefusalBody).error
    except msgspec.DecodeError:
        return None
