"""What gateway replicas tell one another: responses, and figures for consoles."""

import asyncio
import contextlib
import json
import time

import httpx
import msgspec
import pytest
from fake_unit import FakeUnit, eventually, fleet_view
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from router.access.key_figures import KeysReport
from router.openai.foreign_body import message
from router.serve_deployment import GatewayIngress


class Siblings:
    """Stands where the handle to all gateways would: every replica answers, or one of them does not."""

    def __init__(self, *replicas) -> None:
        self.replicas = replicas
        self.fails = False
        self.dead = ()

    def broadcast(self, method, *args):
        self.asked = method, args
        return self

    async def results_async(self, return_exceptions=False):
        if self.fails:
            raise RayServeException("a replica is gone")
        method, args = self.asked
        answers = [RayActorError() for _ in self.dead]
        assert return_exceptions or not answers
        return answers + [await getattr(r, method)(*args) for r in self.replicas if r not in self.dead]


async def test_response__next_turn_at_another_replica__goes_on(monkeypatch, tokenizer_folder) -> None:
    plain = GatewayIngress.__mro__[1]
    replicas = [plain(controller_deployment="Controller", controller_app="control") for _ in range(2)]
    siblings = Siblings(*replicas)

    async def of_fleet(_):
        return siblings

    monkeypatch.setattr(plain, "_siblings", of_fleet)
    async with contextlib.AsyncExitStack() as stack:
        unit = await stack.enter_async_context(FakeUnit(says=lambda _: "Sunny."))
        clients = []
        for replica in replicas:
            replica._gateway.update_view(fleet_view(unit, source=tokenizer_folder))
            stack.push_async_callback(replica._gateway.close)
            transport = httpx.ASGITransport(replica.__serve_build_asgi_app__())
            clients.append(await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://g")))
        body = {"model": "demo/bytes", "input": "Weather?"}
        first = await clients[0].post("/v1/responses", json=body)
        body["previous_response_id"] = first.json()["id"]
        second = await clients[1].post("/v1/responses", json={**body, "input": "And now?"})
        unknown = await clients[1].post("/v1/responses", json={**body, "previous_response_id": "resp_x"})
        siblings.fails = True
        silent = await clients[1].post("/v1/responses", json={**body, "previous_response_id": "resp_x"})

    assert second.status_code == 200
    prompt = bytes(unit.requests[1].prompt_token_ids).decode()
    assert prompt == "<user>Weather?\n<assistant>Sunny.\n<user>And now?\n<assistant>"
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert (silent.status_code, silent.json()["error"]["code"]) == (503, "gateways_silent")
    assert silent.headers["retry-after"] == "5"


@pytest.fixture
async def gateways(monkeypatch, tokenizer_folder):
    """`start(n)` is n replicas that know one unit and each other, with a client of each."""
    plain = GatewayIngress.__mro__[1]
    siblings = Siblings()

    async def of_fleet(_):
        return siblings

    monkeypatch.setattr(plain, "_siblings", of_fleet)
    async with contextlib.AsyncExitStack() as stack:
        unit = await stack.enter_async_context(FakeUnit(says=lambda _: "Sunny."))

        async def start(number):
            found = []
            for _ in range(number):
                replica = plain(controller_deployment="Controller", controller_app="control")
                replica._gateway.update_view(fleet_view(unit, source=tokenizer_folder))
                stack.push_async_callback(replica._gateway.close)
                transport = httpx.ASGITransport(replica.__serve_build_asgi_app__())
                http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://g"))
                found.append((replica, http))
                siblings.replicas = (*siblings.replicas, replica)
            return found

        yield start, siblings, unit


@contextlib.asynccontextmanager
async def exchanging(monkeypatch, *replicas):
    """Gateways tell one another what they keep, fast."""
    monkeypatch.setattr("router.responses.response_copies.EVERY_S", 0.01)
    tasks = [asyncio.create_task(r._copies.follow(lambda: len(replicas))) for r in replicas]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_response__its_replica_dies__the_next_turn_goes_on_at_another(gateways, monkeypatch) -> None:
    start, siblings, unit = gateways
    (one, first_http), (other, second_http) = await start(2)
    body = {"model": "demo/bytes", "input": "Weather?"}
    async with exchanging(monkeypatch, one, other):
        first = await first_http.post("/v1/responses", json=body)
        await eventually(lambda: first.json()["id"] in other._responses.ids())
    siblings.dead = (one,)
    second = await second_http.post(
        "/v1/responses", json={**body, "input": "And now?", "previous_response_id": first.json()["id"]}
    )
    unknown = await second_http.post("/v1/responses", json={**body, "previous_response_id": "resp_x"})

    assert second.status_code == 200
    prompt = bytes(unit.requests[1].prompt_token_ids).decode()
    assert prompt == "<user>Weather?\n<assistant>Sunny.\n<user>And now?\n<assistant>"
    assert unknown.json()["error"]["code"] == "gateways_silent", "the dead one may have it"


async def test_responses__all_replicas_are_replaced_one_by_one__conversations_go_on(gateways, monkeypatch) -> None:
    start, siblings, _ = gateways
    old = await start(2)
    body = {"model": "demo/bytes", "input": "Weather?"}
    async with exchanging(monkeypatch, *(replica for replica, _ in old)):
        said = [(await http.post("/v1/responses", json=body)).json()["id"] for _, http in old for _ in range(3)]
        await eventually(lambda: all(set(said) <= set(r._responses.ids()) for r, _ in old))
    monkeypatch.setattr("router.responses.response_store._PAGE_BYTES", 1)  # a page for each
    for gone, _ in old:
        siblings.replicas = tuple(r for r in siblings.replicas if r is not gone)
        ((new, http),) = await start(1)
        async with exchanging(monkeypatch, *siblings.replicas):
            await eventually(lambda new=new: set(said) <= set(new._responses.ids()))
    answers = [await http.post("/v1/responses", json={**body, "previous_response_id": i}) for i in said]

    assert [a.status_code for a in answers] == [200] * 6


async def test_responses__control_loop_knows_of_one_gateway_only__are_taken_over_all_the_same(
    gateways, monkeypatch
) -> None:
    start, _, _ = gateways
    ((old, _), (new, _)) = await start(2)
    old._responses.keep("resp_1", "me", [message("user", "hm")])
    async with exchanging(monkeypatch, new):
        await eventually(lambda: new._responses.ids() == ["resp_1"])


async def test_check_health__of_a_new_gateway__passes_once_it_has_what_the_others_keep(gateways, monkeypatch) -> None:
    """Serve stops an old gateway as soon as a new one is healthy."""
    start, siblings, _ = gateways
    ((old, _),) = await start(1)
    old._responses.keep("resp_1", "me", [message("user", "hm")])
    ((new, _),) = await start(1)
    siblings.replicas = (old,)  # Serve tells of a replica when it is healthy
    async with exchanging(monkeypatch, new, old):
        await eventually(lambda: new._responses.ids() == ["resp_1"])
        old._responses.keep("resp_2", "me", [message("user", "while the new one waits for the control loop")])
        await new.check_health()
        siblings.replicas = (new,)

    assert set(new._responses.ids()) == {"resp_1", "resp_2"}


async def test_check_health__of_the_first_gateways__passes_although_nobody_answers(gateways, monkeypatch) -> None:
    start, siblings, _ = gateways
    ((new, _),) = await start(1)
    siblings.fails = True  # as a handle does before any replica is healthy
    async with exchanging(monkeypatch, new):
        await asyncio.wait_for(new.check_health(), 30)


async def test_keys__gateways_of_two_releases__are_summed_and_who_cannot_be_read_is_said(gateways) -> None:
    start, siblings, _ = gateways
    (one, _), (other, _) = await start(2)
    key = {
        "key_id": "1",
        "name": "app",
        "is_admin": False,
        "models": None,
        "limit_requests": None,
        "limit_tokens": None,
    }

    def tells(replica, figures) -> None:
        async def part(topic: str):
            return figures if isinstance(figures, bytes | Exception) else json.dumps([figures]).encode()

        replica.console_part = part

    async def told() -> KeysReport:
        body = await one._read_topic("keys", {})
        assert body is not None
        return msgspec.json.decode(body, type=KeysReport)

    tells(one, {**key, "tokens": 30, "recent_tokens": 10})
    tells(other, {**key, "tokens": 12, "colour": "of the next release"})  # and without a field of this one
    both = await told()
    tells(other, {"key_id": "1"})  # without what has no default
    alone = await told()
    siblings.dead = (other,)
    beside_a_dead_one = await told()

    assert [(k.figures.tokens, k.figures.recent_tokens) for k in both.keys] == [(42, 10)]
    assert both.left_out == 0
    for report in (alone, beside_a_dead_one):
        assert [k.figures.tokens for k in report.keys] == [30]
        assert report.left_out == 1
    tells(one, b"?")
    assert await one._read_topic("keys", {}) is None


async def test_background__all_replicas_stood__the_one_that_works_on_it_is_not_taken_for_lost(
    gateways, monkeypatch
) -> None:
    """As of a container that is paused for a minute: nobody renewed anything meanwhile, and nobody has died."""
    monkeypatch.setattr("router.responses.background.LOST_S", 2.5)
    start, _, unit = gateways
    unit.token_gap_s = 1.0
    (one, http), (other, other_http) = await start(2)
    body = {"model": "demo/bytes", "input": "Weather?", "background": True, "max_output_tokens": 5}
    async with exchanging(monkeypatch, one, other):
        asked = (await http.post("/v1/responses", json=body)).json()
        await eventually(lambda: other._responses.unheard_s(asked["id"]) is not None)
        time.sleep(3.0)  # noqa: ASYNC251  it is what stands
        read = (await other_http.get(f"/v1/responses/{asked['id']}")).json()
        await eventually(lambda: one._responses.has_ended(asked["id"]))
        ended = (await other_http.get(f"/v1/responses/{asked['id']}")).json()

    assert read["status"] in ("queued", "in_progress")
    assert ended["status"] in ("completed", "incomplete")
