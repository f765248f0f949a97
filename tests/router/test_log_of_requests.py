"""docs/runbook.md sends people to the log with the id of a request: what they find there."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fake_unit import FakeUnit, eventually

from deploy.log_lines import write_log_lines
from router.generation import Output
from router.limits import GatewayLimits
from router.serving.response import GenerationResponse
from router.telemetry.fleet_event import EventKind

COMPLETION = {"model": "demo/bytes", "prompt": "x", "max_tokens": 40}
RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"


@pytest.fixture
def lines() -> Iterator[Callable[[str], list[dict]]]:
    """`lines(request_id)` are those of a gateway's log that grep finds."""
    names = ("deploy", "pdmux_actor", "placement", "profiler", "router", "traces")
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in names}
    stream = io.StringIO()
    handler = write_log_lines(stream, {"deployment": "Gateway", "replica": "r1"})
    yield lambda request_id: [json.loads(line) for line in stream.getvalue().splitlines() if request_id in line]
    for name, (level, propagates) in before.items():
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


async def test_own_bug__request_id_of_its_answer__finds_time_model_and_traceback(serve, lines, monkeypatch) -> None:
    assert "Status 500: a fault of ours. The gateway's log has it, with its traceback" in RUNBOOK.read_text()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("our bug")

    served = await serve(FakeUnit())
    monkeypatch.setattr(served.gateway, "_enter", broken)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=COMPLETION)

    assert reply.status_code == 500
    (line,) = lines(reply.headers["x-request-id"])
    assert (line["level"], line["message"]) == ("ERROR", "request failed by our own error")
    assert (line["request_id"], line["model"]) == (reply.headers["x-request-id"], "demo/bytes")
    assert (line["deployment"], line["endpoint"]) == ("Gateway", "/v1/completions")
    assert "ZeroDivisionError: our bug" in line["exception"]
    assert line["time"].endswith("+00:00")


async def test_lost_unit__request_id_that_the_client_sent__finds_unit_model_and_reason(serve, lines) -> None:
    fuse = [10]
    units = [FakeUnit(unit_id="unit-a", fuse=fuse), FakeUnit(unit_id="unit-b", fuse=fuse)]
    served = await serve(*units)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "mine-7"})

    assert reply.status_code == 200
    (line,) = lines("mine-7")
    assert (line["level"], line["message"]) == ("WARNING", "request lost its unit")
    assert (line["request_id"], line["model"]) == ("mine-7", "demo/bytes")
    assert line["unit"] in {"unit-a", "unit-b"}
    assert line["reason"]
    assert line["generation_id"] != "mine-7"


async def test_lost_unit__flight_recorder__has_an_event_with_the_request_s_id_unit_and_model(serve) -> None:
    fuse = [10]
    units = [FakeUnit(unit_id="unit-a", fuse=fuse), FakeUnit(unit_id="unit-b", fuse=fuse)]
    served = await serve(*units)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "mine-7"})

    (moved,) = [e for e in served.gateway.events.fetch() if e.kind is EventKind.REQUEST_MOVED]
    assert (moved.request_id, moved.model) == ("mine-7", "demo/bytes")
    assert moved.unit in ("unit-a", "unit-b")
    assert moved.text.startswith("lost its unit: ")


async def test_units_lost_for_good__flight_recorder__tells_of_the_failure_and_counts_it(serve) -> None:
    units = [FakeUnit(unit_id=f"unit-{i}", fuse=[0]) for i in range(3)]
    served = await serve(*units, limits=GatewayLimits(hold_s=2, max_deaths=1))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "mine-8"})

    assert reply.status_code >= 500
    kinds = {e.kind for e in served.gateway.events.fetch() if e.request_id == "mine-8"}
    assert kinds == {EventKind.REQUEST_MOVED, EventKind.REQUEST_FAILED}
    assert b'muxfleet_generations_failed_total{model="demo/bytes"} 1.0' in served.gateway.metrics.exposition()


async def test_stream__ends_with_an_error__request_log_and_receipt_name_it(serve, caplog) -> None:
    caplog.set_level("INFO", logger="muxfleet.requests")
    served = await serve(FakeUnit(says=lambda _: "letters", fuse=[5]), limits=GatewayLimits(max_attempts=1))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=COMPLETION | {"stream": True})

    assert "unit_lost" in reply.text
    await eventually(lambda: served.gateway.receipts.told().last)
    (line,) = [json.loads(r.message) for r in caplog.records if r.name == "muxfleet.requests"]
    assert (line["status"], line["error"], line["output_tokens"]) == (502, "UnitsLost", 5)
    (receipt,) = served.gateway.receipts.told().last
    assert (receipt.status, receipt.error != "") == (502, True)
    counted = b'muxfleet_requests_total{endpoint="/v1/completions",model="demo/bytes",status="502"} 1.0'
    assert counted in served.gateway.metrics.exposition()


CHAT = {"model": "demo/bytes", "messages": [{"role": "user", "content": "x"}], "max_tokens": 40}
STREAMS = {
    "/v1/completions": (COMPLETION, []),
    "/v1/chat/completions": (CHAT, []),
    "/v1/messages": (CHAT, ["error"]),
    "/v1/responses": ({"model": "demo/bytes", "input": "x", "max_output_tokens": 40}, ["response.failed", "error"]),
}


@pytest.mark.parametrize("our_bug", [ZeroDivisionError("our bug"), ConnectionResetError("our bug")])
@pytest.mark.parametrize("path", STREAMS)
async def test_own_bug__in_the_midst_of_a_stream__is_told_logged_and_counted_as_an_error(
    serve, caplog, monkeypatch, path, our_bug
) -> None:
    caplog.set_level("INFO", logger="muxfleet.requests")

    def broken(response: GenerationResponse, output: Output) -> None:
        num_tokens[0] += output.num_tokens
        if num_tokens[0] > 3:
            raise our_bug

    num_tokens = [0]
    monkeypatch.setattr(GenerationResponse, "_count", broken)
    served = await serve(FakeUnit(says=lambda _: "letters and more letters"))
    body, names = STREAMS[path]
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post(path, json=body | {"stream": True}, headers={"x-request-id": "mine-9"})

    said = "The gateway failed on this request; report it with request id mine-9."
    events = reply.text.strip().split("\n\n")
    told = [event for event in events if said in event]
    assert told == events[-max(1, len(names)) :], "the errors of the API's form come last, each once"
    assert [event.split("\n")[0] for event in told if event.startswith("event: ")] == [f"event: {n}" for n in names]
    last = json.loads(told[-1].rpartition("data: ")[2])
    if path == "/v1/messages":
        assert last == {"type": "error", "error": {"type": "api_error", "message": said}}
    else:
        assert last == {"error": {"message": said, "type": "server_error", "param": None, "code": "internal_error"}}
    await eventually(lambda: served.gateway.receipts.told().last)
    (line,) = [json.loads(r.message) for r in caplog.records if r.name == "muxfleet.requests"]
    assert (line["status"], line["error"]) == (500, "GatewayFault")
    assert served.gateway.receipts.told().last[0].error == said
    counted = f'muxfleet_requests_total{{endpoint="{path}",model="demo/bytes",status="500"}} 1.0'
    assert counted.encode() in served.gateway.metrics.exposition()
    (bug,) = [r for r in caplog.records if r.exc_info]
    assert bug.exc_info[1] is our_bug
