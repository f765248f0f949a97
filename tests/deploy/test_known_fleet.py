"""`muxfleet status` of a fleet whose gateways serve while its control loop is away."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_model import FakeUnit
from live_gateway import live_gateway, no_answer

from deploy.cli import main
from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import Slo
from router.http.live_routes import LiveSources
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView

LIVE = LiveSources(read_topic=no_answer, what_if=no_answer)
SLO = Slo(ttft_s=1.0, tbt_s=0.05)


def card(model: str, *, can_wake: bool = False) -> ModelCard:
    return ModelCard(model=model, source="/m", revision=None, slo=SLO, created_s=0, can_wake=can_wake)


def view() -> FleetView:
    unit = FakeUnit(unit_id="u1", phases={"served": ModelPhase.READY, "new": ModelPhase.LOADING})
    cards = (card("served"), card("new"), card("idle", can_wake=True), card("homeless"))
    return FleetView(models=cards, units=(UnitView(report=unit.report(), age_s=7.0),), stream_token="let me in")


async def told_once(gateway: Gateway) -> None:
    gateway.update_view(view())


@pytest.fixture
def url() -> Iterator[str]:
    with live_gateway(LIVE, feed=told_once, read_fleet=no_answer) as url:
        yield url


def status(*asked: str | Path) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["status", *map(str, asked)])
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_status__control_loop_away__tells_what_a_gateway_knows_and_how_old_that_is(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(url, "--json", tmp_path / "s.json") == 1

    out, err = capsys.readouterr()
    assert err == ""
    assert f"no control loop answers for the fleet at {url}: " in out
    assert re.search(r"what a gateway was told of the fleet \d+ s ago", out)
    assert "no fleet answers" not in out
    assert "let me in" not in (tmp_path / "s.json").read_text()
    told = json.loads((tmp_path / "s.json").read_text())
    assert {m["id"]: m["status"] for m in told["models"]} == {
        "served": "ready",
        "new": "loading",
        "idle": "asleep",
        "homeless": "unavailable",
    }
    (unit,) = told["units"]
    assert unit["unit"] == "u1"
    assert 7.0 <= unit["report_age_s"] < 60.0
    for model, state in (("served", "ready"), ("new", "loading"), ("idle", "asleep"), ("homeless", "unavailable")):
        assert [line.split()[1] for line in out.splitlines() if line.startswith(model)] == [state]


def test_status__gateway_knows_nothing_either__says_what_lacks_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with live_gateway(LIVE, read_fleet=no_answer) as url:
        assert status(url) == 1

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"muxfleet: no control loop answers for the fleet at {url}: ")


def test_explain__control_loop_away__does_not_say_that_there_is_no_fleet(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["explain", url, "served"])

    assert capsys.readouterr().err.startswith(f"muxfleet: no control loop answers for the fleet at {url}: ")
