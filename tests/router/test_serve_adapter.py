"""The ingress without a cluster: what it does with what the control loop says, or does not say."""

import asyncio
import threading

import pytest
from fake_unit import FakeUnit, eventually, fleet_view
from ray.exceptions import TaskCancelledError
from ray.serve.exceptions import RayServeException
from served_ingress import until_ready

from router import serve_deployment as serve_adapter
from router.access.api_keys import KeyEntry, KeyRing
from router.access.rate_limits import KeyUsage
from router.fleet_follower import WAIT_S
from router.serve_deployment import GatewayIngress
from router.view import FleetView


async def test_view__control_loop_answers__gateway_becomes_ready(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)


async def test_view__control_loop_lost__last_view_stays_and_news_come_after(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
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


async def test_body__client_leaves_in_its_midst_behind_serves_proxy__is_499(replica) -> None:
    """The proxy cancels the call that would bring the rest of the body."""
    ingress, _, http = replica
    left = TaskCancelledError()

    async def receive() -> dict:
        raise left

    sent = []

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/tokenize", "query_string": b"", "headers": headers}
    await http._transport.app(scope, receive, send)

    counted = ingress._gateway.metrics.exposition().decode()
    assert 'endpoint="/tokenize",model="",status="499"} 1.0' in counted
    assert 'endpoint="/tokenize",model="",status="500"} 0.0' in counted
    assert sent[0]["status"] == 499


async def test_decisions__known_unit__are_passed_on_as_they_are(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)
        unit_id = control.view.units[0].report.unit_id

        answer = await http.get(f"/units/{unit_id}/decisions", params={"last": 7})
        await http.get(f"/units/{unit_id}/decisions")

    assert (answer.status_code, answer.content) == (200, b'{"decisions": []}')
    assert answer.headers["content-type"] == "application/json"
    assert control.decisions.asked == [(unit_id, 7), (unit_id, 4096)]


@pytest.mark.parametrize("body", [None, RayServeException("gone"), TimeoutError()])
async def test_decisions__unit_does_not_answer__is_a_503_to_try_again(ingress, tokenizer_folder, body) -> None:
    control, http = ingress
    control.decisions.body = body
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)

        answer = await http.get(f"/units/{control.view.units[0].report.unit_id}/decisions")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unit_silent"
    assert answer.headers["retry-after"] == "5"


async def test_decisions__unknown_unit_or_bad_number__is_refused_without_asking(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)
        unit_id = control.view.units[0].report.unit_id

        unknown = await http.get("/units/nobody/decisions")
        refused = [await http.get(f"/units/{unit_id}/decisions", params={"last": n}) for n in ("0", "x", "4097", "²")]

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unit_not_found")
    assert [(r.status_code, r.json()["error"]["param"]) for r in refused] == [(400, "last")] * 4
    assert control.decisions.asked == []


async def test_view__after_requests__gateway_tells_what_was_asked_for(ingress, tokenizer_folder) -> None:
    control, http = ingress
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await eventually(lambda: control.asked > 5)
        for _ in range(3):
            body = {"model": "demo/bytes", "prompt": "four", "max_tokens": 2}
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        assert (await http.post("/v1/completions", json={"model": "absent", "prompt": "x"})).status_code == 404

        await eventually(lambda: control.demand.models and control.demand.models[0].output_tokens_total >= 6)
        (asked,) = control.demand.models
        assert (asked.model, asked.requests_total, asked.prompt_tokens_total) == ("demo/bytes", 3, 12)
        assert (asked.output_tokens_total, asked.waiting) == (6, 0)


async def test_view__nothing_happens__one_question_waits_at_the_control_loop(ingress, tokenizer_folder) -> None:
    control, http = ingress
    control.holds = True
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        await eventually(lambda: control.waiting)
        asked = control.asked
        await asyncio.sleep(0.2)  # looks at what it has to tell every 0.01 s

    assert control.asked == asked
    assert control.waits == [0.0] * (len(control.waits) - 1) + [WAIT_S]


async def test_view__somebody_asks_while_a_question_waits__is_told_at_once(ingress, tokenizer_folder) -> None:
    control, http = ingress
    control.holds = True
    async with FakeUnit() as unit:
        control.view = fleet_view(unit, source=tokenizer_folder)
        await until_ready(http)
        await eventually(lambda: control.waiting)
        body = {"model": "demo/bytes", "prompt": "four", "max_tokens": 2}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        asked_s = asyncio.get_running_loop().time()

        await eventually(lambda: control.demand.models and control.demand.models[0].output_tokens_total == 2)

        assert asyncio.get_running_loop().time() - asked_s < WAIT_S
        assert 0.0 in control.waits[control.waits.index(WAIT_S) :]
        await eventually(lambda: control.waiting == 1)


async def test_check_health__new_replica__passes_with_the_first_view_and_stays_without_a_control_loop(replica) -> None:
    """Serve waits for a new replica's first check, without a limit, before it routes to it or stops an old one."""
    ingress, control, http = replica
    first = asyncio.create_task(ingress.check_health())
    await eventually(lambda: control.asked > 5)
    assert not first.done()
    assert (await http.get("/ready")).status_code == 503

    control.view = FleetView(models=(), units=(), stream_token="t")  # no unit has come: requests are held
    await asyncio.wait_for(first, 30)

    control.view = None
    asked = control.asked
    await eventually(lambda: control.asked > asked + 5)
    await asyncio.wait_for(ingress.check_health(), 30)


def test_check_health__loop_stands__no_answer_until_it_goes_on() -> None:
    """Serve calls it on the loop that serves and replaces a replica whose answer does not come in time."""
    plain = GatewayIngress.__mro__[1]
    ingress = plain(controller_deployment="Controller", controller_app="control")
    ingress._gateway.update_view(FleetView(models=(), units=(), stream_token="t"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    goes_on = threading.Event()
    try:
        asyncio.run_coroutine_threadsafe(ingress.check_health(), loop).result(timeout=60)

        loop.call_soon_threadsafe(goes_on.wait)
        asked = asyncio.run_coroutine_threadsafe(ingress.check_health(), loop)
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.2)

        goes_on.set()
        asked.result(timeout=60)
    finally:
        goes_on.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Usage:
    """`key_usage.remote(gateway, told)`: a new gateway is told of a debt."""

    def __init__(self) -> None:
        self.told = []

    async def remote(self, gateway_id, told):
        self.told.append(told)
        return (KeyUsage(key_id="k", tokens_left=-1.0),) if told is None else ()


async def test_key_usage__new_gateway__begins_with_what_keys_owe_and_tells_it_on(replica, monkeypatch) -> None:
    ingress, control, _ = replica
    monkeypatch.setattr(serve_adapter, "KEYS_POLL_S", 0.01)
    control.key_usage = usage = Usage()
    entry = KeyEntry(key_id="k", name="team", hash="sha256:0", tokens_per_minute=600)
    ingress._gateway.access.set_keys(KeyRing([entry]))
    following = asyncio.create_task(ingress._follow_usage(ingress._gateway))
    await eventually(lambda: len(usage.told) >= 3)
    following.cancel()

    assert usage.told[0] is None
    assert usage.told.count(None) == 1
    assert [(u.key_id, -1.0 <= u.tokens_left < -0.9) for u in usage.told[1]] == [("k", True)]
