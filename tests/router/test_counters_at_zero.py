"""Counters are exported at 0 as soon as their labels are known: `increase()` misses the event a series is born with."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fake_unit import FakeUnit, fleet_view
from fleet_values import model_load, unit
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pdmux_actor.lease import ModelPhase
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.error_bodies import INTERNAL, SHAPES
from router.serving.gateway import Gateway

MODEL = "demo/bytes"
KEY = make_key()
GENERATION_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/rerank",
    "/v1/responses",
    "/v1/score",
)


def counters(gateway: Gateway) -> Iterator[Metric]:
    families = text_string_to_metric_families(gateway.metrics.exposition().decode())
    yield from (family for family in families if family.type == "counter")


def values(gateway: Gateway, counter: str) -> dict[frozenset[tuple[str, str]], float]:
    (family,) = (f for f in counters(gateway) if f.name == counter)
    return {frozenset(s.labels.items()): s.value for s in family.samples if s.name == f"{counter}_total"}


def at_zero(*series: dict[str, str]) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(labels.items()): 0.0 for labels in series}


@pytest.fixture
async def informed(serve, tokenizer_folder: Path):
    """A gateway that has served nothing yet and knows the fleet: a unit that loads its model, and one API key."""
    gateway = (await serve()).gateway
    loading = unit("u1", model_load(MODEL), phase=ModelPhase.LOADING, reports_load=False)
    gateway.update_view(replace(fleet_view(source=tokenizer_folder), units=(loading,)))
    gateway.access.set_keys(KeyRing([KeyEntry(key_id=KEY.key_id, name="team", hash=KEY.hash)]))
    return gateway


async def test_gateway__knows_the_fleet__every_counter_has_its_series_at_0(informed, tokenizer_folder: Path) -> None:
    """Also what two models of a unit cost each other."""
    loading = unit("u1", model_load(MODEL), model_load("b"), phase=ModelPhase.LOADING, reports_load=False)
    informed.update_view(replace(fleet_view(source=tokenizer_folder), units=(loading,)))
    found = {
        family.name: [s.value for s in family.samples if s.name.endswith("_total")] for family in counters(informed)
    }

    assert len(found) >= 14
    for name, samples in found.items():
        assert samples, f"{name} has no series"
        assert set(samples) == {0.0}, name


async def test_gateway__knows_the_fleet__series_are_those_of_its_models_units_keys_and_reasons(informed) -> None:
    per_model = [f"muxfleet_{n}" for n in ("generation_continuations", "requests_shed", "requests_unserved", "answers")]
    for counter in per_model:
        assert values(informed, counter) == at_zero({"model": MODEL})
    slos = [{"model": MODEL, "slo": slo} for slo in ("ttft", "tbt")]
    assert values(informed, "muxfleet_answers_slo_met") == at_zero(*slos)
    reasons = [{"reason": reason} for reason in ("predicted", "power_of_two", "stale")]
    assert values(informed, "muxfleet_routing_decisions") == at_zero(*reasons)
    for counter in ("requests_rate_limited", "key_generations", "key_tokens"):
        assert values(informed, f"muxfleet_{counter}") == at_zero({"key": "team"})
    assert values(informed, "muxfleet_preemptions") == at_zero({"model": MODEL, "unit": "u1"})
    assert values(informed, "muxfleet_guard_cells_moved") == at_zero({"unit": "u1"})


async def test_requests__every_status_of_our_errors__is_there_for_every_model(informed) -> None:
    series = [dict(labels) for labels in values(informed, "muxfleet_requests")]

    of_nobody = {s["status"] for s in series if s["model"] == "" and s["endpoint"] == "other"}
    assert of_nobody == {"200", "499", str(INTERNAL.status), *(str(shape.status) for shape in SHAPES.values())}
    for path in GENERATION_PATHS:
        of_model = {s["status"] for s in series if s["model"] == MODEL and s["endpoint"] == path}
        assert {"200", "400", "403", "404", "429", "499", "500", "502", "503"} == of_model
    assert {s["endpoint"] for s in series if s["model"] == MODEL} == set(GENERATION_PATHS)


async def test_counter__view_comes_again__keeps_what_it_counted_and_makes_nothing_new(informed) -> None:
    informed.metrics.continuations.labels(MODEL).inc()
    before = len(informed.metrics.exposition().splitlines())

    informed.update_view(informed.view.current)

    assert values(informed, "muxfleet_generation_continuations") == {frozenset({("model", MODEL)}): 1.0}
    assert len(informed.metrics.exposition().splitlines()) == before


async def test_served_requests__good_bad_and_unknown__make_no_series_that_was_not_there(serve) -> None:
    served = await serve(FakeUnit())
    known = set(values(served.gateway, "muxfleet_requests"))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        ask = {"model": MODEL, "prompt": "x", "max_tokens": 3}
        assert (await http.post("/v1/completions", json=ask)).status_code == 200
        assert (await http.post("/v1/completions", json=ask | {"max_tokens": 10**6})).status_code == 400
        assert (await http.post("/v1/completions", json=ask | {"model": "nobody/knows"})).status_code == 404
        assert (await http.post("/v1/completions", content=b"x", headers={"content-type": "a/b"})).status_code == 415
        assert (await http.get("/v1/completions")).status_code == 405
        assert (await http.get("/nowhere")).status_code == 404
        assert (await http.get("/ready")).status_code == 200

    assert set(values(served.gateway, "muxfleet_requests")) == known
