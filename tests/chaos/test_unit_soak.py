"""100,000 requests through the data path without Ray: a gateway's connection, a unit, its engine process."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fleets.byte_checkpoint import write_checkpoint

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Delta
from pdmux_actor.serving.unit import Unit
from router.transport.unit_client import FrameStreamClient

REQUESTS = 100_000
CLIENTS = 64
MARKS = 10
MAX_TOKENS = 4
TOKEN = "secret"
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3600)]


async def ask(client: FrameStreamClient, number: int) -> None:
    request = GenerateRequest(
        request_id=f"r{number}",
        model="m",
        prompt_token_ids=(1 + number % 50, *range(8)),
        sampling=SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0),
        slo=Slo(ttft_s=5.0, tbt_s=5.0),
    )
    with closing(await client.open(request)) as stream:
        deltas = [item async for item in stream if isinstance(item, Delta)]
    assert deltas[-1].finish is FinishReason.LENGTH, deltas[-1]
    assert sum(len(delta.token_ids) for delta in deltas) == MAX_TOKENS


async def send(client: FrameStreamClient, numbers: range) -> None:
    left = iter(numbers)

    async def keep_asking() -> None:
        for number in left:
            await ask(client, number)

    await asyncio.gather(*(keep_asking() for _ in range(CLIENTS)))


def usage(engine: NativeEngine) -> dict[str, int]:
    found = [psutil.Process(), psutil.Process(engine.pid)]
    return {
        "rss_bytes": sum(p.memory_info().rss for p in found),
        "descriptors": sum(p.num_fds() for p in found),
        "threads": sum(p.num_threads() for p in found),
    }


async def test_unit__hundred_thousand_requests__memory_descriptors_and_threads_stay_flat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "m", (4, 256, 512, 4, 4, 64))
    engine = NativeEngine(
        EngineSettings(kind="simulated", kv_pool_bytes=1 << 30, device_type="H100"), start_timeout_s=120
    )
    unit = Unit(engine, unit_id="u", node="n", pool="p", num_gpus=1)
    await unit.start()
    model = ModelAssignment(model="m", source=str(tmp_path / "m"), quota_blocks=10_000, slo=Slo(ttft_s=5.0, tbt_s=5.0))
    unit.apply_lease(Lease(version=1, models=(model,), policy="mux", stream_token=TOKEN))
    client = FrameStreamClient(unit.endpoint, TOKEN)
    try:
        async with asyncio.timeout(120):
            while [s.phase for s in unit.report().models] != [ModelPhase.READY]:  # noqa: ASYNC110  sets no event
                await asyncio.sleep(0.05)
        marks = []
        for mark in range(MARKS):
            share = REQUESTS // MARKS
            await send(client, range(mark * share, (mark + 1) * share))
            marks.append(usage(engine))
            with capsys.disabled():
                print(f"\n  {json.dumps({'requests': (mark + 1) * share} | marks[-1])}", end="", flush=True)
    finally:
        await client.close()
        await unit.stop()
    warm, middle, end = marks[0], marks[MARKS // 2], marks[-1]
    assert end["rss_bytes"] < 1.10 * warm["rss_bytes"]
    assert end["rss_bytes"] < 1.03 * middle["rss_bytes"]
    assert end["descriptors"] == warm["descriptors"]
    assert end["threads"] == warm["threads"]
