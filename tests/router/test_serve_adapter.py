"""The ingress without a cluster: what it does with what the control loop says, or does not say."""

import httpx
import pytest
from fake_unit import FakeUnit, eventually, fleet_view

from router import serve_adapter
from router.serve_adapter import GatewayIngress


class ControlLoop:
    """Stands where Serve's handle would: `fleet_view.remote()` answers or raises."""

    def __init__(self) -> None:
        self.view = None
        self.asked = 0

    @property
    def fleet_view(self) -> "ControlLoop":
        return self

    async def remote(self):
        self.asked += 1
        if self.view is None:
            raise ConnectionError("no control loop")
        return self.view


@pytest.fixture
async def ingress(monkeypatch):
    control = ControlLoop()
    names = []
    monkeypatch.setattr(serve_adapter, "POLL_S", 0.01)
    monkeypatch.setattr(
        serve_adapter.serve,
        "get_deployment_handle",
        lambda deployment, app_name: names.append((deployment, app_name)) or control,
    )
    plain = GatewayIngress.__mro__[1]  # the class below Serve's wrapper, which needs a cluster
    ingress = plain(controller_deployment="Controller", controller_app="control")
    app = ingress.__serve_build_asgi_app__()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http,
    ):
        yield control, http
    assert set(names) == {("Controller", "control")}


async def test_view__control_loop_answers__gateway_becomes_ready(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)

        assert (await http.get("/ready")).status_code == 200


async def test_view__control_loop_lost__last_view_stays_and_news_come_after(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)
        control.view = None
        asked = control.asked
        await eventually(lambda: control.asked > asked + 5)
        during = await http.get("/ready")
        control.view = fleet_view(unit, source=tokenizer_folder, models=("other",))
        asked = control.asked
        await eventually(lambda: control.asked > asked + 2)
        after = await http.get("/v1/models")

    assert during.status_code == 200
    assert [m["id"] for m in after.json()["data"]] == ["other"]


async def test_request_id__under_serve__is_left_to_serve(ingress) -> None:
    _, http = ingress
    assert "x-request-id" not in (await http.get("/health")).headers
