"""What a gateway exposes: a real one on a real server, with a unit that speaks real frames."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import uvicorn

from pdmux_actor.messages import NeighbourLoss
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.telemetry.fleet_metrics import merged_exposition
from router.view import UnitView

sys.path.append(str(Path(__file__).resolve().parents[1] / "router"))
from fake_unit import FakeUnit, eventually, fleet_view, write_byte_tokenizer
from fleet_values import model_load
from fleet_values import unit as loaded_unit

MODEL, UNIT, GATEWAY = "m", "u1", "g"


def expositions(folder: Path) -> tuple[str, str, str]:
    """Before its first request, when it knows the fleet; after one that went well; and of units that have just joined
    with two models.
    """
    return asyncio.run(_expositions(folder))


async def _expositions(folder: Path) -> tuple[str, str, str]:
    gateway = Gateway()

    async def all_gateways(openmetrics: bool) -> bytes:
        assert not openmetrics, "nobody asks for it here"
        own = gateway.metrics.own_text(openmetrics=openmetrics)
        return merged_exposition({GATEWAY: own}, gateway.metrics.fleet_text(openmetrics=openmetrics))

    app = create_app(gateway, read_metrics=all_gateways)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    source = write_byte_tokenizer(folder / "tokenizer")
    async with (
        FakeUnit(unit_id=UNIT, models=(MODEL,)) as unit,
        httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False) as client,
    ):
        view = fleet_view(unit, source=source, models=(MODEL,))
        gateway.metrics.start_keys(["team"])
        gateway.update_view(replace(view, units=()))
        fresh = (await client.get("/metrics")).text
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await eventually(lambda: any(m.held for m in gateway.demand_report().models))
        gateway.update_view(view)  # a cold start
        cold = await asking
        gateway.update_view(replace(view, units=tuple(_with_load(unit) for unit in view.units)))
        warm = await client.post("/v1/chat/completions", json=body)
        assert (cold.status_code, warm.status_code) == (200, 200), cold.text + warm.text
        gateway.update_view(replace(gateway.view.current, units=(_unit_that_decodes(),)))
        served = (await client.get("/metrics")).text
        gateway.update_view(replace(view, units=tuple(_just_joined(view.units[0], name) for name in (UNIT, "u2"))))
        joined = (await client.get("/metrics")).text
    server.should_exit = True
    await serving
    return fresh, served, joined


def _with_load(unit: UnitView) -> UnitView:
    """What first tokens are predicted from."""
    load = loaded_unit(UNIT, model_load(MODEL)).report.load
    return replace(unit, report=replace(unit.report, load=load))


def _just_joined(unit: UnitView, unit_id: str) -> UnitView:
    """No engine of theirs has counted anything."""
    statuses = tuple(replace(unit.report.models[0], model=model) for model in (MODEL, "n"))
    return replace(unit, report=replace(unit.report, unit_id=unit_id, models=statuses, load=None))


def _unit_that_decodes() -> UnitView:
    """Its load has what engines tell only while something runs."""
    lost = NeighbourLoss(neighbour="other", ttft_s=0.5, tbt_s=0.1)
    attained = model_load(MODEL, ttft_attainment=1.0, tbt_attainment=1.0, request_attainment=1.0, lost_to=(lost,))
    view = loaded_unit(UNIT, attained)
    load = replace(view.report.load, decode_headroom=0.5)
    return replace(view, report=replace(view.report, load=load))
