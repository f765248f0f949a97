"""How evenly a fleet serves models and API keys, in `muxfleet status`."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fleet_model import FakeUnit, fleet_status
from live_gateway import live_gateway, no_answer

from deploy.cli import main
from deploy.control.fleet_status import FleetStatus, ModelState
from pdmux_actor.lease import ModelPhase
from router.access.key_figures import KeyFigures, keys_report
from router.http.live_routes import LiveSources

KEY = KeyFigures(key_id="1", name="app", is_admin=False, models=None, limit_requests=None, limit_tokens=None)
KEYS = keys_report([replace(KEY, recent_tokens=300), replace(KEY, key_id="2", name="batch", recent_tokens=100)])


def fleet() -> FleetStatus:
    """One of its models is in time, the other never."""
    unit = FakeUnit(unit_id="u1", phases=dict.fromkeys("ab", ModelPhase.READY))
    models = tuple(ModelState(model=m, phases=(ModelPhase.READY,), planned_units=(), problem=None) for m in "ab")
    status = fleet_status(unit, models=models)
    report = status.units[0].report
    assert report.load is not None
    in_time = {"a": 1.0, "b": 0.0}
    loads = tuple(replace(m, request_attainment=in_time[m.model]) for m in report.load.models)
    told = replace(status.units[0], report=replace(report, load=replace(report.load, models=loads)))
    return replace(status, units=(told,))


async def read_fleet(explain: str | None) -> bytes:
    return msgspec.json.encode(fleet())


def asked(url: str, file: Path) -> dict[str, object]:
    with pytest.raises(SystemExit) as exited:
        main(["status", url, "--json", str(file)])
    assert exited.value.code == 0
    return json.loads(file.read_text())["fairness"]


def test_status__fleet_with_keys__says_how_evenly_they_and_models_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read_topic(topic: str, about) -> bytes:
        assert topic == "keys"
        return msgspec.json.encode(KEYS)

    with live_gateway(LiveSources(read_topic=read_topic, what_if=no_answer), read_fleet=read_fleet) as url:
        told = asked(url, tmp_path / "s.json")

    out = capsys.readouterr().out
    assert (
        "Jain's index (1: all alike): 0.50 of models' requests in time, 0.80 of keys' tokens in the last 5 min" in out
    )
    assert [line.split()[0] for line in out.splitlines() if "75.0%" in line] == ["app"]
    assert told["models"]["jain_index"] == 0.5
    assert [k["share"] for k in told["keys"]["keys"]] == [0.75, 0.25]


def test_status__gateways_do_not_tell_of_keys__shows_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_gateway(LiveSources(read_topic=no_answer, what_if=no_answer), read_fleet=read_fleet) as url:
        told = asked(url, tmp_path / "s.json")
    assert told["keys"] is None
    assert "0.50 of models' requests in time" in capsys.readouterr().out
