"""Asks a running endpoint over HTTP what it serves."""

from dataclasses import dataclass

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.bounded_transport import bounded_get
from deploy.environment import bearer_headers
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import path_of, reaching
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
    with reaching(url):
        response = bounded_get(path_of(url, "/v1/models"), headers=bearer_headers(api_key), timeout_s=_TIMEOUT_S)
    if not response.is_success:
        raise FleetUnreachable(address=url, reason=f"/v1/models answers {_status(response)}")
    try:
        entries = _Listing.model_validate_json(response.content).data
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
