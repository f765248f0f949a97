"""The units of a running fleet, from its gateway's metrics."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.errors import FleetUnreachable

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitModelFigures:
    model: str
    running: float
    waiting: float
    used_blocks: float
    quota_blocks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFigures:
    unit: str
    report_age_s: float
    models: tuple[UnitModelFigures, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def unit_figures(url: str) -> tuple[UnitFigures, ...]:
    """Raises FleetUnreachable."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        response = httpx.get(f"{base}/metrics", timeout=_TIMEOUT_S, trust_env=False)
        response.raise_for_status()
    except httpx.InvalidURL as error:
        raise FleetUnreachable(address=url, reason="not a URL such as http://127.0.0.1:8000") from error
    except httpx.HTTPStatusError as error:
        raise FleetUnreachable(address=url, reason=f"/metrics answers {error.response.status_code}") from error
    except httpx.TransportError as error:
        raise FleetUnreachable(address=url, reason=str(error) or type(error).__name__) from error
    return parse_unit_figures(response.text)


def parse_unit_figures(exposition: str) -> tuple[UnitFigures, ...]:
    values = dict(_samples(exposition))
    ages = {key[1]: value for key, value in values.items() if key[0] == "muxfleet_unit_report_age_seconds"}
    placed = sorted({(key[1], key[2]) for key in values if key[0] == "muxfleet_num_requests_running"})
    return tuple(
        UnitFigures(
            unit=unit,
            report_age_s=age_s,
            models=tuple(
                UnitModelFigures(
                    model=model,
                    running=values["muxfleet_num_requests_running", unit, model, ""],
                    waiting=values["muxfleet_num_requests_waiting", unit, model, ""],
                    used_blocks=values["muxfleet_kv_blocks", unit, model, "used"],
                    quota_blocks=values["muxfleet_kv_blocks", unit, model, "quota"],
                )
                for of_unit, model in placed
                if of_unit == unit
            ),
        )
        for unit, age_s in sorted(ages.items())
    )


def _samples(exposition: str) -> Iterator[tuple[tuple[str, str, str, str], float]]:
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = sample.labels
            if "unit" in labels:
                key = (sample.name, labels["unit"], labels.get("model", ""), labels.get("state", ""))
                yield key, sample.value
