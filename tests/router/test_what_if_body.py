"""What a what-if is asked with."""

import json

import pytest
from fleet_values import fleet, model_load, unit
from starlette.testclient import TestClient

from router.http.app import create_app
from router.http.live_routes import LiveSources
from router.serving.gateway import Gateway
from router.what_if import OtherTargets, WhatIfChanges


class Planner:
    def __init__(self) -> None:
        self.asked: WhatIfChanges | None = None

    async def what_if(self, changes: WhatIfChanges) -> bytes:
        self.asked = changes
        return b"{}"

    async def read_topic(self, topic: str, about) -> None: ...


def served(planner: Planner) -> TestClient:
    gateway = Gateway()
    gateway.view.update(fleet(unit("u", model_load("m")), models=("m",)), gateway.clock())
    return TestClient(create_app(gateway, live=LiveSources(read_topic=planner.read_topic, what_if=planner.what_if)))


def test_what_if__rates_targets_and_nodes__are_what_the_planner_is_asked() -> None:
    planner = Planner()
    client = served(planner)
    (pool,) = {u.report.pool for u in fleet(unit("u", model_load("m")), models=("m",)).units}
    asked = {"rates": {"m": 12.5}, "targets": {"m": {"tbt_s": 0.05}}, "nodes": {pool: 6}}

    assert client.post("/fleet/what-if", json=asked).status_code == 200
    assert planner.asked == WhatIfChanges(rates={"m": 12.5}, targets={"m": OtherTargets(tbt_s=0.05)}, nodes={pool: 6})
    assert planner.asked.text() == f"m at 12.5/s, m with TBT 0.05 s, pool {pool} with 6 nodes"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("not json", "The body is not"),
        ("[]", "The body is not"),
        ('{"rates": {"m": "x"}}', "$.rates"),
        ('{"weather": {}}', "weather"),
        ("{}", "send rates, targets or nodes"),
        ('{"rates": {}}', "send rates, targets or nodes"),
        ('{"rates": {"m": -1}}', "rates of 'm' is -1"),
        ('{"targets": {"m": {}}}', "send ttft_s, tbt_s or both"),
        ('{"targets": {"m": {"ttft_s": 0}}}', "ttft_s of 'm' is 0"),
        ('{"targets": {"m": {"tbt_s": 1e9}}}', "tbt_s of 'm' is 1000000000.0"),
        ('{"nodes": {"moon": 2}}', "'moon', which is no pool"),
        ('{"nodes": {"%": 0}}', "is 0: send 1 to 1024"),
        ('{"nodes": {"%": 1.5}}', "$.nodes"),
    ],
)
def test_what_if__cannot_be_planned_for__says_what_to_send(body: str, says: str) -> None:
    planner = Planner()
    pool = unit("u", model_load("m")).report.pool
    answer = served(planner).post("/fleet/what-if", content=body.replace("%", pool))
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert planner.asked is None


@pytest.mark.parametrize("asked", [{"rates": {"nobody": 1}}, {"targets": {"nobody": {"ttft_s": 1}}}])
def test_what_if__model_that_is_not_offered__is_not_found(asked) -> None:
    answer = served(Planner()).post("/fleet/what-if", content=json.dumps(asked))
    assert answer.status_code == 404
