"""The same fleet behind HAProxy, with Serve's throughput flags: the recommended mode."""

import asyncio

import pytest
from clients import MODELS, chat, client_of, endings, streamed_chat
from fleet_process import FleetProcess

from deploy.demo_fleet import generated_trace
from traces.outcome import Ending

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.mark.parametrize("model", MODELS)
def test_haproxy__chat__streamed_and_whole_are_the_same_text(haproxy_fleet: FleetProcess, model: str) -> None:
    client = client_of(haproxy_fleet.url)

    whole = chat(client, model, max_tokens=40)

    assert whole
    assert streamed_chat(client, model, max_tokens=40) == whole


def test_haproxy__replay__answers_everything(haproxy_fleet: FleetProcess) -> None:
    counts = asyncio.run(endings(generated_trace(requests=60, seed=3), haproxy_fleet.url))

    assert counts[Ending.FINISHED] == 60, counts


def test_haproxy__engine_killed_while_streaming__stream_goes_on(haproxy_fleet: FleetProcess) -> None:
    client = client_of(haproxy_fleet.url)
    expected = chat(client, MODELS[1], max_tokens=300)
    engine = haproxy_fleet.engine()

    def kill_once(chunks: int) -> None:
        if chunks == 20:
            engine.kill()

    assert streamed_chat(client, MODELS[1], max_tokens=300, on_chunk=kill_once) == expected
    haproxy_fleet.wait_until_replaced(engine, haproxy_fleet.engine)
