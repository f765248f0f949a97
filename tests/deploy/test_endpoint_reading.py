import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from fleet_model import FakeUnit, World, catalog, fleet_status

from deploy.cli import main
from deploy.control.fleet_status import ModelState
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import fleet_report
from deploy.inspection.served_models import served_models
from pdmux_actor.lease import ModelPhase
from traces.timeliness import SloTarget


class Endpoint(ThreadingHTTPServer):
    answer: tuple[int, str] = (200, "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Endpoint)
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[tuple[Endpoint, str]]:
    with Endpoint(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_served_models__our_list__has_lengths_and_targets(endpoint: tuple[Endpoint, str]) -> None:
    server, url = endpoint
    entry = {"id": "a", "status": "ready", "max_model_len": 64, "slo": {"ttft_s": 1, "tbt_s": 0.5}, "more": 1}
    server.answer = (200, json.dumps({"data": [entry]}))

    (model,) = served_models(f"{url}/v1/")

    assert (model.id, model.max_model_len, model.slo) == ("a", 64, SloTarget(ttft_s=1.0, tbt_s=0.5))


def test_served_models__plain_openai_list__leaves_the_rest_open(endpoint: tuple[Endpoint, str]) -> None:
    server, url = endpoint
    server.answer = (200, '{"object": "list", "data": [{"id": "gpt", "object": "model"}]}')

    (model,) = served_models(url)

    assert (model.status, model.max_model_len, model.slo) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, '{"data": []}', "it serves no models"),
        (200, "<html>", "/v1/models is not OpenAI's list of models"),
        (401, "", "/v1/models answers 401"),
    ],
)
def test_served_models__something_else__says_what(
    endpoint: tuple[Endpoint, str], status: int, body: str, reason: str
) -> None:
    server, url = endpoint
    server.answer = (status, body)

    with pytest.raises(FleetUnreachable, match=reason):
        served_models(url)


@pytest.mark.parametrize("url", ["127.0.0.1:9", "ftp://x", "http://", "::"])
def test_served_models__not_a_url__says_so(url: str) -> None:
    with pytest.raises(FleetUnreachable):
        served_models(url)


def test_fleet_report__state_of_a_control_loop__comes_over_whole(endpoint: tuple[Endpoint, str]) -> None:
    server, url = endpoint
    world = World(catalog("a", "b"), expected_units=1)
    world.start_unit()
    world.beat(6)
    status = world.loop.status(world.now_s)
    server.answer = (200, msgspec.json.encode(status).decode())

    assert fleet_report(f"{url}/v1") == status
    assert status.decisions
    assert all(m.is_ready for m in status.models)


def test_explain__running_fleet__says_where_a_model_sits_and_what_else_there_was(
    endpoint: tuple[Endpoint, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = endpoint
    world = World(catalog("a", "b"), expected_units=2)
    world.start_unit()
    world.start_unit()
    world.beat(6)
    server.answer = (200, msgspec.json.encode(world.loop.explain("a", world.now_s)).decode())

    with pytest.raises(SystemExit) as exited:
        main(["explain", url, "a"])

    out = capsys.readouterr().out
    assert exited.value.code == 0
    assert f"on {world.serving('a')[0]}:" in out
    assert world.serving("b")[0] in out, "the other unit is among the rejected"


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, '{"error": {"message": "The control loop does not answer now"}}', "control loop does not answer now"),
        (404, "Path '/fleet' not found.", "/fleet answers 404: no gateway is there: one of a fleet that starts"),
        (200, "[]", "/fleet is not a fleet of this version"),
    ],
)
def test_fleet_report__something_else__says_what(
    endpoint: tuple[Endpoint, str], status: int, body: str, reason: str
) -> None:
    server, url = endpoint
    server.answer = (status, body)

    with pytest.raises(FleetUnreachable, match=reason):
        fleet_report(url)


@pytest.mark.parametrize("phase", [p for p in ModelPhase if p is not ModelPhase.ASLEEP])  # those on a device
def test_status__state_of_the_model__decides_the_exit_code(
    endpoint: tuple[Endpoint, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: ModelPhase
) -> None:
    server, url = endpoint
    unit = FakeUnit(unit_id="u1", phases={"a": phase})
    model = ModelState(model="a", phases=(phase,), planned_units=("u1",), problem="it is too large")
    server.answer = (200, msgspec.json.encode(fleet_status(unit, models=(model,))).decode())

    with pytest.raises(SystemExit) as exited:
        main(["status", url, "--json", str(tmp_path / "s.json")])

    out = capsys.readouterr().out
    assert exited.value.code == (0 if phase is ModelPhase.READY else 1)
    assert "a: it is too large" in out
    assert "unit u1 joined" in out
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["models"][0]["status"] == phase.value
    assert found["units"][0]["models"][0]["quota_blocks"] == 0
