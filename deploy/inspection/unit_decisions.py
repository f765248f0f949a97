"""Asks a unit of a running fleet over HTTP what it decided lately."""

from urllib.parse import quote

import httpx
import msgspec

from deploy.environment import bearer_headers
from deploy.errors import FleetUnreachable
from pdmux_actor.scheduling.decision_log import LogExcerpt

_TIMEOUT_S = 20.0


class _Refusal(msgspec.Struct):
    message: str


class _RefusalBody(msgspec.Struct):
    error: _Refusal


def unit_decisions(url: str, unit: str, *, last: int) -> LogExcerpt:
    """Raises FleetUnreachable: nobody answers, or the unit does not."""
    base = url.rstrip("/").removesuffix("/v1")
    path = f"/units/{quote(unit, safe='')}/decisions"
    try:
        response = httpx.get(
            f"{base}{path}", params={"last": last}, headers=bearer_headers(), timeout=_TIMEOUT_S, trust_env=False
        )
    except httpx.InvalidURL as error:
        raise FleetUnreachable(address=url, reason="not a URL such as http://127.0.0.1:8000") from error
    except httpx.TransportError as error:
        raise FleetUnreachable(address=url, reason=str(error) or type(error).__name__) from error
    if response.status_code != 200:
        raise FleetUnreachable(address=url, reason=_reason(response, path))
    try:
        return msgspec.json.decode(response.content, type=LogExcerpt)
    except msgspec.DecodeError as error:
        raise FleetUnreachable(address=url, reason=f"{path} is not a decision log of this version: {error}") from error


def _reason(response: httpx.Response, path: str) -> str:
    try:
        return msgspec.json.decode(response.content, type=_RefusalBody).error.message
    except msgspec.DecodeError:
        return f"{path} answers {response.status_code}"
