"""A model that does not load: who asks for it is told so at once, and why; who asks for a slow one waits."""

import asyncio
import time
from dataclasses import replace

import httpx
import pytest
from fake_unit import FakeUnit, eventually, fleet_view

from pdmux_actor.lease import ModelPhase, ModelStatus
from router.limits import GatewayLimits
from router.view import FleetView

MODEL = "demo/bytes"
REASON = "model 'demo/bytes' does not load: model.safetensors is cut short; copy it again"


def view_with(served, *phases: ModelPhase, problem: str = "", adapter_of: str | None = None) -> FleetView:
    """One unit has the model in each phase."""
    shown = fleet_view(*served.units[: len(phases)], source=served.folder)
    status = ModelStatus(model=MODEL, phase=ModelPhase.READY, max_model_len=4096)
    units = []
    for unit, phase in zip(shown.units, phases, strict=True):
        told = replace(status, phase=phase, error=REASON if phase is ModelPhase.FAILED else None, base=adapter_of)
        units.append(replace(unit, report=replace(unit.report, models=(told,))))
    cards = tuple(replace(card, can_wake=True, problem=problem, adapter_of=adapter_of) for card in shown.models)
    return replace(shown, models=cards, units=tuple(units))


async def ask(served, **changes) -> httpx.Response:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        return await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 5, **changes})


@pytest.fixture
async def served(serve):
    return await serve(FakeUnit(unit_id="a"), FakeUnit(unit_id="b"), limits=GatewayLimits(hold_s=20))


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_model__does_not_load__requests_that_wait_are_told_why_at_once(served, stream, was_ready) -> None:
    if not was_ready:
        served.gateway.view._max_model_lens.clear()  # as if no unit had told yet
    served.gateway.update_view(view_with(served, ModelPhase.LOADING))
    asking = asyncio.create_task(ask(served, stream=stream))
    await eventually(lambda: any(m.held for m in served.gateway.demand_report().models))
    began_s = time.monotonic()
    served.gateway.update_view(view_with(served, ModelPhase.FAILED))
    reply = await asking

    assert time.monotonic() - began_s < 10
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_load_failed")
    assert reply.json()["error"]["message"].startswith(f"The {REASON}.")
    assert "muxfleet status" in reply.json()["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert int(reply.headers["retry-after"]) > 0


async def test_model__has_not_loaded_or_is_held_back__requests_that_come_are_told_why(served) -> None:
    served.gateway.update_view(view_with(served, ModelPhase.FAILED))
    failed = await ask(served)
    served.gateway.update_view(view_with(served, problem="loaded nowhere for 287 s"))
    held_back = await ask(served)

    assert [r.json()["error"]["code"] for r in (failed, held_back)] == ["model_load_failed"] * 2
    assert REASON in failed.json()["error"]["message"]
    assert "loaded nowhere for 287 s" in held_back.json()["error"]["message"]


@pytest.mark.parametrize("meanwhile", [(ModelPhase.FAILED, ModelPhase.LOADING), (ModelPhase.LOADING,), ()])
async def test_model__is_slow_or_loads_elsewhere__requests_wait_for_it(served, meanwhile) -> None:
    served.gateway.update_view(view_with(served, *meanwhile))
    asking = asyncio.create_task(ask(served))
    await eventually(lambda: any(m.held for m in served.gateway.demand_report().models))
    served.gateway.update_view(view_with(served, *meanwhile))
    await asyncio.sleep(0.2)
    assert not asking.done()
    served.gateway.update_view(view_with(served, ModelPhase.READY))
    reply = await asking

    assert reply.status_code == 200


async def test_model__ready_on_one_unit_and_failed_on_another__is_served(served) -> None:
    served.gateway.update_view(view_with(served, ModelPhase.READY, ModelPhase.FAILED, problem="loaded nowhere else"))

    assert (await ask(served)).status_code == 200


async def test_adapter__its_base_has_just_left__is_no_failure_of_its_own(served) -> None:
    served.gateway.update_view(view_with(served, ModelPhase.FAILED, adapter_of="base"))
    asking = asyncio.create_task(ask(served))
    await eventually(lambda: any(m.held for m in served.gateway.demand_report().models))
    await asyncio.sleep(0.1)

    assert not asking.done()
    asking.cancel()
