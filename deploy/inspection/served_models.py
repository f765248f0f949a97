"""Asks a running endpoint over HTTP what it serves."""

from dataclasses import dataclass

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.environment import bearer_headers
from deploy.errors import FleetUnreachable
from traces.timeliness import SloTarget

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """`max_model_len` and `slo` are None where the endpoint does not tell."""

    id: str
    status: str | None
    max_model_len: int | None
    slo: SloTarget | None


class _Slo(BaseModel):
    ttft_s: float
    tbt_s: float


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id: str
    status: str | None = None
    max_model_len: int | None = None
    slo: _Slo | None = None


class _Listing(BaseModel):
    data: list[_Entry]


def _status(response: httpx.Response) -> str:
    needs_key = response.status_code in (401, 403)
    return f"{response.status_code}{'; give a key with --api-key or in MUXFLEET_API_KEY' if needs_key else ''}"


def served_models(url: str, *, api_key: str | None = None) -> tuple[ServedModel, ...]:
    """Raises FleetUnreachable: nothing there answers as an OpenAI-compatible endpoint, or it serves no model."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        response = httpx.get(f"{base}/v1/models", headers=bearer_headers(api_key), timeout=_TIMEOUT_S, trust_env=False)
        response.raise_for_status()
        entries = _Listing.model_validate_json(response.content).data
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise FleetUnreachable(address=url, reason="not a URL such as http://127.0.0.1:8000") from error
    except httpx.HTTPStatusError as error:
        raise FleetUnreachable(address=url, reason=f"/v1/models answers {_status(error.response)}") from error
    except httpx.TransportError as error:
        raise FleetUnreachable(address=url, reason=str(error) or type(error).__name__) from error
    except ValidationError as error:
        raise FleetUnreachable(address=url, reason="/v1/models is not OpenAI's list of models") from error
    if not entries:
        raise FleetUnreachable(address=url, reason="it serves no models")
    return tuple(
        ServedModel(
            id=e.id,
            status=e.status,
            max_model_len=e.max_model_len,
            slo=None if e.slo is None else SloTarget(ttft_s=e.slo.ttft_s, tbt_s=e.slo.tbt_s),
        )
        for e in entries
    )
