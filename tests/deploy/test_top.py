"""`muxfleet top`, and the stream that it follows."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

import msgspec
import pytest
from fleet_model import FakeUnit, fleet_status
from live_gateway import live_gateway, no_answer

from deploy.cli import main
from deploy.control.fleet_status import FleetStatus, ModelState, UnitStatus
from deploy.errors import FleetUnreachable
from deploy.inspection.live_events import FollowedFleet, fleet_events
from deploy.inspection.live_fleet import LiveSelection
from deploy.inspection.live_picture import live_fleet
from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import Slo
from router.http.live_feed import EVERY_S
from router.http.live_routes import LiveSources

T = TypeVar("T")
MODEL = ModelState(
    model="llama",
    phases=(ModelPhase.READY,),
    planned_units=("u1",),
    problem="its checkpoint is gone",
    slo=Slo(ttft_s=1.0, tbt_s=0.1),
)


class Fleet:
    """What a control loop would tell; None: it does not answer."""

    def __init__(self, *unit_ids: str) -> None:
        units = [FakeUnit(unit_id=u, phases={"llama": ModelPhase.READY}) for u in unit_ids]
        self.status: FleetStatus | None = fleet_status(*units, models=(MODEL,))

    async def read(self, topic: str, about) -> bytes | None:
        assert topic == "fleet"
        if self.status is None:
            return None
        return msgspec.json.encode(live_fleet(self.status, LiveSelection(**about), {}, 1000.0))

    def sources(self) -> LiveSources:
        return LiveSources(read_topic=self.read, what_if=no_answer)


def eventually(is_so: Callable[[], T]) -> T:
    until_s = time.monotonic() + 60
    while not (found := is_so()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http.live_feed.EVERY_S", dict.fromkeys(EVERY_S, 0.02))


def test_top__two_looks__shows_models_units_and_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    with live_gateway(Fleet("u1").sources()) as url, pytest.raises(SystemExit) as exited:
        main(["top", url, "--every", "0.1", "--count", "2"])

    out = capsys.readouterr().out
    assert exited.value.code == 0
    assert "policy mux  1 unit " in out
    assert "u1" in out
    assert "llama suffers: its checkpoint is gone" in out
    assert "unit u1 joined" in out


def test_top__more_units_than_are_told__shows_pools_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(*(f"u{i:03d}" for i in range(100)))
    assert fleet.status is not None
    silent = replace(fleet.status.units[70], silent_s=9.0)
    units: tuple[UnitStatus, ...] = (*fleet.status.units[:70], silent, *fleet.status.units[71:])
    fleet.status = replace(fleet.status, units=units)
    with live_gateway(fleet.sources()) as url, pytest.raises(SystemExit):
        main(["top", url, "--count", "1"])

    out = capsys.readouterr().out
    assert "48 of 100 units, those in trouble first" in out
    assert "with a queue" in out
    assert "silent for 9.0 s" in out
    assert "u099" not in out


def test_top__nobody_is_there__says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["top", "http://127.0.0.1:9"])
    assert exited.value.code != 0
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_top__another_server_is_there__says_so_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    class AnotherServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "18")
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

    with HTTPServer(("127.0.0.1", 0), AnotherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SystemExit) as exited:
            main(["top", f"http://127.0.0.1:{server.server_port}"])
        server.shutdown()

    assert exited.value.code == 1
    assert "/fleet/live is no fleet's: no event stream" in capsys.readouterr().err


def test_followed__control_loop_is_away_and_comes_back__keeps_the_picture_and_says_so() -> None:
    fleet = Fleet("u1")
    before, fleet_after = fleet.status, Fleet("u1", "u2").status
    with live_gateway(fleet.sources()) as url:
        followed = FollowedFleet(url)
        fleet.status = None
        trouble = eventually(lambda: followed.look()[1])
        assert trouble.startswith("no control loop answers")
        assert before is not None
        assert followed.look()[0].num_units == 1
        fleet.status = fleet_after
        eventually(lambda: followed.look()[0].num_units == 2)
        assert followed.look()[1] == ""


@pytest.mark.parametrize("says", [b"{}", b"[]", b'{"policy": 1}'])
def test_fleet_events__gateway_of_another_version__says_so(says: bytes) -> None:
    async def read(topic: str, about) -> bytes:
        return says

    with (
        live_gateway(LiveSources(read_topic=read, what_if=no_answer)) as url,
        pytest.raises(FleetUnreachable, match="not a fleet of this version"),
    ):
        next(fleet_events(url))
