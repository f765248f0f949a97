"""A scrape reaches one gateway, which answers for all."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import httpx
import pytest
from fake_unit import fleet_view
from fleet_values import model_load, unit
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from router.serve_deployment import GatewayIngress

MODEL = "demo/bytes"


class Siblings:
    """Stands where the handle to all gateways would; those in `dead` raise, as Serve tells it."""

    def __init__(self, replicas: list) -> None:
        self.replicas, self.dead, self.fails = replicas, [], False

    def broadcast(self, method, *args):
        self.asked = method, args
        return self

    async def results_async(self, return_exceptions=False):
        assert return_exceptions, "one that has just died must not cost the others' metrics"
        if self.fails:
            raise RayServeException("nobody")
        method, args = self.asked
        return [await self._answer(r, method, *args) for r in self.replicas]

    async def _answer(self, replica, method, *args):
        if replica in self.dead:
            return RayActorError()
        return await getattr(replica, method)(*args)


@pytest.fixture
async def gateways(monkeypatch, tokenizer_folder) -> AsyncIterator[tuple[Siblings, httpx.AsyncClient]]:
    """Two gateways that know a unit; the client asks the first."""
    plain = GatewayIngress.__mro__[1]
    replicas = [plain(controller_deployment="Controller", controller_app="control") for _ in range(2)]
    siblings = Siblings(replicas)

    async def of_fleet(_):
        return siblings

    monkeypatch.setattr(plain, "_siblings", of_fleet)
    async with contextlib.AsyncExitStack() as stack:
        for number, replica in enumerate(replicas):
            monkeypatch.setattr(replica, "_replica_id", lambda name=f"g{number}": name)
            replica._gateway.update_view(fleet_view(source=tokenizer_folder))
            stack.push_async_callback(replica._gateway.close)
        tell_units(replicas[0], "u1")
        tell_units(replicas[1], "u1", "u2")
        transport = httpx.ASGITransport(replicas[0].__serve_build_asgi_app__())
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://g"))
        yield siblings, client


def tell_units(replica, *units: str, age_s: float = 1.0) -> None:
    gateway = replica._gateway
    view = fleet_view(source="/m")
    gateway.update_view(
        type(view)(models=view.models, stream_token="t", units=tuple(unit(u, model_load(MODEL)) for u in units))
    )
    gateway.metrics.view_age_s = lambda: age_s


async def scraped(client: httpx.AsyncClient, **headers: str) -> Mapping[str, Metric]:
    answer = await client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    is_open = answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list((parsed_openmetrics if is_open else text_string_to_metric_families)(answer.text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "a family stands once"
    return {family.name: family for family in families}


def labels(family: Metric, label: str) -> list[str | None]:
    return [sample.labels.get(label) for sample in family.samples]


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_scrape__counters_and_histograms__has_no_second_series_of_when_each_began(gateways, accept) -> None:
    _, client = gateways

    found = await scraped(client, accept=accept)

    assert [s.name for family in found.values() for s in family.samples if s.name.endswith("_created")] == []


async def test_scrape__of_two_gateways__has_what_each_counts_and_once_what_both_know(gateways) -> None:
    _, client = gateways

    found = await scraped(client)

    assert set(labels(found["muxfleet_answers"], "gateway")) == {"g0", "g1"}
    assert labels(found["muxfleet_unit_report_age_seconds"], "unit") == ["u1"]
    for family in ("muxfleet_unit_report_age_seconds", "muxfleet_num_requests_running", "muxfleet_model_replicas"):
        assert set(labels(found[family], "gateway")) == {None}


async def test_scrape__gateway_does_not_hear_from_the_control_loop__another_tells_of_the_fleet(gateways) -> None:
    siblings, client = gateways
    tell_units(siblings.replicas[0], "u1", age_s=60.0)

    found = await scraped(client)

    assert labels(found["muxfleet_unit_report_age_seconds"], "unit") == ["u1", "u2"]
    assert set(labels(found["muxfleet_answers"], "gateway")) == {"g0", "g1"}


@pytest.mark.parametrize("fault", ["dead", "fails"])
async def test_scrape__other_gateway_does_not_answer__has_the_rest(gateways, fault: str) -> None:
    siblings, client = gateways
    siblings.dead, siblings.fails = [siblings.replicas[1]], fault == "fails"

    found = await scraped(client)

    assert set(labels(found["muxfleet_answers"], "gateway")) == {"g0"}
    assert labels(found["muxfleet_unit_report_age_seconds"], "unit") == ["u1"]


async def test_scrape__of_two_gateways__each_writes_what_it_counts_once(gateways, monkeypatch) -> None:
    siblings, client = gateways
    written: list[str] = []

    def counting(gateway: str, write: Callable[..., bytes], *, openmetrics: bool) -> bytes:
        written.append(gateway)
        return write(openmetrics=openmetrics)

    for replica in siblings.replicas:
        metrics = replica._gateway.metrics
        monkeypatch.setattr(metrics, "own_text", partial(counting, replica._replica_id(), metrics.own_text))

    await scraped(client)

    assert sorted(written) == ["g0", "g1"]
