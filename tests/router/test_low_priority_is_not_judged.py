"""Requests of low priority, as lines of batches are, have what others leave: their waits are nobody's missed target."""

import asyncio

import httpx
import pytest
from fake_unit import FakeUnit, eventually
from prometheus_client.parser import text_string_to_metric_families

from pdmux_actor.messages import Slo
from router.limits import GatewayLimits
from router.telemetry.fleet_event import EventKind

MODEL = "demo/bytes"
NEVER = Slo(ttft_s=1e-9, tbt_s=1e-9)
JUDGED = ("answers", "answers_slo_met", "requests_in_time", "requests_shed", "requests_unserved", "generations_failed")


async def post(served, priority: str) -> int:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=body, headers={"x-muxfleet-priority": priority})
    return reply.status_code


def judged(served) -> dict[str, float]:
    families = text_string_to_metric_families(served.gateway.metrics.exposition().decode())
    names = {f"muxfleet_{name}_total": name for name in JUDGED}
    samples = [s for family in families for s in family.samples if s.name in names and s.value]
    return {names[s.name]: s.value for s in samples}


def told(served) -> tuple[int, int, int, int]:
    (asked,) = served.gateway.demand_report().models
    return asked.requests_total, asked.finished_total, asked.shed_total, asked.no_capacity_total


async def test_answer__late_and_of_low_priority__counts_in_no_figure_of_requests_in_time(serve) -> None:
    served = await serve(FakeUnit())
    served.show(*served.units, slo=NEVER)

    assert await post(served, "low") == 200
    assert (judged(served), told(served)) == ({}, (1, 0, 0, 0))
    assert EventKind.SLO_MISSED not in {event.kind for event in served.gateway.events.fetch()}

    assert await post(served, "normal") == 200
    assert (judged(served), told(served)) == ({"answers": 1}, (2, 1, 0, 0))
    assert EventKind.SLO_MISSED in {event.kind for event in served.gateway.events.fetch()}


@pytest.mark.parametrize(
    ("limits", "units", "status", "name"),
    [
        (GatewayLimits(max_queued=0), 1, 429, "requests_shed"),
        (GatewayLimits(hold_s=0.05), 0, 503, "requests_unserved"),
    ],
)
async def test_refusal__of_low_priority__is_demand_and_no_request_that_was_kept_from_an_answer(
    serve, limits, units, status, name
) -> None:
    served = await serve(FakeUnit(), limits=limits)
    served.show(*served.units[:units])

    assert await post(served, "low") == status
    assert (judged(served), told(served)) == ({}, (1, 0, 0, 0))

    assert await post(served, "normal") == status
    assert judged(served) == {name: 1}
    assert told(served) == ((2, 0, 1, 0) if status == 429 else (2, 0, 0, 1))


async def test_failure__of_low_priority__is_an_event_and_burns_no_budget(serve) -> None:
    served = await serve(FakeUnit(fuse=[2, 2]), limits=GatewayLimits(max_attempts=1))

    assert await post(served, "low") == 502
    assert judged(served) == {}
    assert EventKind.REQUEST_FAILED in {event.kind for event in served.gateway.events.fetch()}

    assert await post(served, "normal") == 502
    assert judged(served) == {"generations_failed": 1}


async def test_tokenize__queue_is_full__is_answered_and_no_request_was_shed(serve) -> None:
    unit = FakeUnit(token_gap_s=600)
    served = await serve(unit, limits=GatewayLimits(max_queued=1))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        waits = asyncio.create_task(post(served, "normal"))
        await eventually(lambda: unit.requests)
        assert await post(served, "normal") == 429
        tokenized = await http.post("/tokenize", json={"model": MODEL, "prompt": "xy"})
        counted = await http.post(
            "/v1/messages/count_tokens", json={"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        )

        waits.cancel()

    assert (tokenized.status_code, counted.status_code) == (200, 200)
    assert judged(served) == {"requests_shed": 1}
    assert told(served) == (2, 0, 1, 0)
