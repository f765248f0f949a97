"""The ingress without a cluster, and what stands where Serve's handle of a control loop would."""

import asyncio
from contextlib import asynccontextmanager

import httpx
from ray.exceptions import RayTaskError

from router import serve_deployment as serve_adapter
from router.serve_deployment import GatewayIngress
from router.view import FleetNews, write_news


class Decisions:
    """`decisions.remote(unit, last)` answers for one unit."""

    def __init__(self) -> None:
        self.asked = []
        self.body = b'{"decisions": []}'

    async def remote(self, unit, last):
        self.asked.append((unit, last))
        if isinstance(self.body, Exception):
            raise self.body
        return self.body


class PlainQuestion:
    """`remote(report)` answers at once, or raises."""

    def __init__(self, control) -> None:
        self._control = control

    async def remote(self, demand):
        self._control.questions.append("plain")
        return self._control.answer(demand)


class QuestionForNews:
    """`remote(report, events, known, wait_s)` waits if `control.holds`, until somebody gives up."""

    def __init__(self, control) -> None:
        self._control = control

    async def remote(self, demand, events, known, wait_s):
        control = self._control
        control.questions.append("news")
        control.waits.append(wait_s)
        if control.is_old:
            raise RayTaskError("told_news", "", "AttributeError()")
        if events and control.refuses:
            control.asked += 1
            raise control.refuses.pop()
        view = control.answer(demand)
        control.events.extend(events)
        if control.holds and known == (1,) and wait_s:
            control.waiting += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                control.waiting -= 1
        return b"\x80" if control.writes_otherwise else write_news(FleetNews(view=view, version=(1,)))


class ControlLoop:
    """Stands where Serve's handle would."""

    def __init__(self) -> None:
        self.view = None
        self.asked = 0
        self.demand = None
        self.decisions = Decisions()
        self.events = []
        self.refuses = []
        self.fails = None
        self.is_old = self.holds = self.writes_otherwise = False
        self.questions = []
        self.waits = []
        self.waiting = 0
        self.fleet_view = PlainQuestion(self)
        self.told_news = QuestionForNews(self)

    def answer(self, demand):
        self.asked += 1
        self.demand = demand
        if self.fails is not None:
            raise self.fails
        if self.view is None:
            raise ConnectionError("no control loop")
        return self.view


async def until_ready(http: httpx.AsyncClient) -> None:
    """A view, and the tokenizer of its model, which takes seconds the first time."""
    async with asyncio.timeout(30):
        while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110  (no event tells it)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_ingress(monkeypatch):
    """What Serve makes, started as Serve starts it: the app's lifespan runs, then the health is asked for."""
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
        yield ingress, control, http
    assert set(names) == {("Controller", "control")}
