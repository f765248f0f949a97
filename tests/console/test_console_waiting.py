"""The console's playground while the model that is asked loads: the client's comment lines are seen."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import fake_unit
import fleet_model
import msgspec
import pytest
from chromium import Page, chromium, missing
from live_gateway import live_gateway, no_answer
from served_gateway import InlineText

from deploy.control.fleet_status import ModelState
from deploy.inspection.live_fleet import LiveSelection
from deploy.inspection.live_picture import live_fleet
from pdmux_actor.lease import ModelPhase
from router.http.live_routes import LiveSources
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import ModelLoadTimes

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing()))]

MODEL = "demo/bytes"
LIMITS = GatewayLimits(hold_s=120, tell_wait_s=0.1)
WAITS = "return document.querySelector('[data-field=waits]')?.innerText ?? ''"


class ColdModel:
    """Loads for 25 s as far as anybody knows, until `is_ready`."""

    def __init__(self, folder: Path) -> None:
        self.is_ready = False
        self.url = ""
        self._folder = folder

    async def follow(self, gateway: Gateway) -> None:
        async with fake_unit.FakeUnit(token_gap_s=0.02) as unit:
            while True:
                phase = ModelPhase.READY if self.is_ready else ModelPhase.LOADING
                view = fake_unit.fleet_view(unit, source=self._folder, phase=phase)
                times = (ModelLoadTimes(model=MODEL, loads=1, seconds=25.0),)
                gateway.update_view(replace(view, load_times=times))
                await asyncio.sleep(0.1)

    async def read_topic(self, topic: str, about: Mapping[str, str]) -> bytes:
        model = ModelState(model=MODEL, phases=(ModelPhase.LOADING,), planned_units=(), problem=None)
        status = fleet_model.fleet_status(fleet_model.FakeUnit(unit_id="unit-a"), models=(model,))
        return msgspec.json.encode(live_fleet(status, LiveSelection(), {}, 1000.0))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ColdModel]:
    served = ColdModel(fake_unit.write_byte_tokenizer(tmp_path / "tokenizer"))
    sources = LiveSources(read_topic=served.read_topic, what_if=no_answer)
    gateway = Gateway(LIMITS, start_text=InlineText.start)
    with live_gateway(sources, gateway, feed=served.follow, has_console=True) as url:
        served.url = url
        yield served


@pytest.fixture
def page(cold: ColdModel, tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path / "chromium") as browser:
        browser.open(f"{cold.url}/console#playground")
        yield browser


def test_playground__model_loads__shows_how_far_it_is_then_the_answer(cold: ColdModel, page: Page) -> None:
    page.wait_for("the playground", lambda: "two side by side" in page.text(), 60)
    page.run("document.querySelector('#say').focus()")
    page.press("hello\n")
    said = f"loading {MODEL}, ready in about "
    page.wait_for("how far it is", lambda: page.run(WAITS).startswith(said), 20)
    first = page.run(WAITS)
    page.wait_for("less to wait", lambda: page.run(WAITS) not in ("", first), 20)

    cold.is_ready = True

    page.wait_for("the answer", lambda: "tokens/s" in page.text(), 60)
    receipt = page.text(".facts")
    assert "unit-a" in receipt
    assert "cold " in receipt
    assert page.errors() == []
