"""A request that kills every engine it reaches: it is answered after the second one, and whoever else asks is served.

Real engine processes, units and a gateway, without Ray: here the test can see to it that the request is poison.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import uvicorn
from fleets.byte_checkpoint import write_checkpoint

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import GenerateRequest, Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.unit import Unit
from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView

MODEL = "alpha"
POISON = 13
SLO = Slo(ttft_s=60.0, tbt_s=60.0)
UNITS = 3
NEIGHBOURS = 8


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (states that set no event)
            await asyncio.sleep(0.002)


def has_tokens(unit: Unit) -> int:
    """Streams that the unit has sent something of."""
    return sum(opened.stream._pending.sequence > 0 for opened in unit._streams.values())


class MortalEngine(NativeEngine):
    """Its process is killed as soon as it is given a prompt that begins with POISON."""

    def submit(self, request: GenerateRequest) -> None:
        super().submit(request)
        if request.prompt_token_ids[0] == POISON:
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def started_unit(number: int, source: Path) -> AsyncIterator[Unit]:
    engine = MortalEngine(EngineSettings(kind="simulated", kv_pool_bytes=1 << 30, device_type="H100"))
    unit = Unit(engine, unit_id=f"unit-{number}", node="n", pool="p", num_gpus=1)
    await unit.start()
    try:
        assignment = ModelAssignment(model=MODEL, source=str(source), quota_blocks=10_000, slo=SLO)
        unit.apply_lease(Lease(version=1, models=(assignment,), policy="mux", stream_token="secret"))
        await until(lambda: [s.phase.value for s in unit.report().models] == ["ready"])
        yield unit
    finally:
        await unit.stop()


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(create_app(gateway), host="127.0.0.1", port=0, log_level="critical"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def view(units: list[Unit], source: Path) -> FleetView:
    return FleetView(
        models=(ModelCard(model=MODEL, source=str(source), revision=None, slo=SLO, created_s=1),),
        units=tuple(UnitView(report=unit.report(), age_s=0.1) for unit in units),
        stream_token="secret",
    )


async def ask(http: httpx.AsyncClient, first_token: int, max_tokens: int = 400) -> httpx.Response:
    prompt = [first_token, *range(30, 60)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return await http.post("/v1/completions", json=body)


async def test_poison_request__kills_whatever_holds_it__two_units_at_most_and_its_neighbours_lose_nothing(
    tmp_path: Path,
) -> None:
    source = tmp_path / MODEL
    write_checkpoint(source, (16, 4096, 14336, 32, 8, 128))
    async with contextlib.AsyncExitStack() as stack:
        units = [await stack.enter_async_context(started_unit(i, source)) for i in range(UNITS)]
        gateway = Gateway(GatewayLimits(hold_s=60.0))
        url = await stack.enter_async_context(serving(gateway))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120, trust_env=False))
        gateway.update_view(view(units, source))
        in_peace = (await ask(http, 7)).json()["choices"][0]["text"]

        neighbours = [asyncio.create_task(ask(http, 7)) for _ in range(NEIGHBOURS)]
        await until(lambda: sum(has_tokens(unit) for unit in units) == NEIGHBOURS)
        poison = asyncio.create_task(ask(http, POISON))
        answered = await poison
        gateway.update_view(view(units, source))
        answers = await asyncio.gather(*neighbours)
        afterwards = await ask(http, 7)

        dead = [unit for unit in units if not unit.is_healthy()]
        assert (answered.status_code, answered.json()["error"]["code"]) == (500, "request_killed_units")
        assert len(dead) == 2
        assert [a.status_code for a in answers] == [200] * NEIGHBOURS, [a.text for a in answers if a.status_code != 200]
        assert {a.json()["choices"][0]["text"] for a in answers} == {in_peace}
        assert afterwards.json()["choices"][0]["text"] == in_peace
