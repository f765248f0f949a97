"""Responses in the background, through OpenAI's own SDK."""

import asyncio
import contextlib

import httpx
import msgspec
import openai
import pytest
from fake_unit import FakeUnit, eventually
from served_gateway import running

from router.errors import InvalidRequest
from router.responses.background import BackgroundResponses
from router.responses.background_handover import LOST_S
from router.responses.event_log import EventLog
from router.responses.response_store import ResponseStore
from router.responses.schemas import ResponseSchema
from router.responses.told_copies import newest

BODY = {"model": "demo/bytes", "input": "hi", "background": True}


@pytest.fixture
async def sdk(serve):
    unit = FakeUnit(token_gap_s=0.005, says=lambda _: "Sunny, with a little rain.")
    served = await serve(unit)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        client.unit, client.served = unit, served
        yield client


async def ended(sdk: openai.AsyncOpenAI, response_id: str):
    async with asyncio.timeout(60):
        while True:
            found = await sdk.responses.retrieve(response_id)
            if found.status not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.01)


async def test_background__polled__is_queued_then_completed_and_gone_on_with(sdk) -> None:
    made = await sdk.responses.create(**BODY)
    done = await ended(sdk, made.id)
    second = await sdk.responses.create(model="demo/bytes", input="and now?", previous_response_id=made.id)
    again = await sdk.responses.cancel(made.id)

    assert (made.status, made.background, made.output, made.usage) == ("queued", True, [], None)
    assert (done.status, done.output_text, done.usage.output_tokens) == ("completed", "Sunny, with a little rain.", 26)
    assert (done.id, done.created_at, again) == (made.id, made.created_at, done)
    assert second.background is False
    prompt = bytes(sdk.unit.requests[-1].prompt_token_ids).decode()
    assert prompt == "<user>hi\n<assistant>Sunny, with a little rain.\n<user>and now?\n<assistant>"
    for shown in (made, done):
        assert ResponseSchema.model_validate(shown.model_dump()).background


async def test_background__cut_by_max_output_tokens__is_incomplete(sdk) -> None:
    done = await ended(sdk, (await sdk.responses.create(**BODY, max_output_tokens=3)).id)

    assert (done.status, done.incomplete_details.reason, done.output_text) == ("incomplete", "max_output_tokens", "Sun")


@pytest.mark.parametrize("end", ["cancel", "delete"])
async def test_background__cancelled_or_deleted__the_engine_stops(sdk, end) -> None:
    sdk.unit.token_gap_s = 0.2
    conversation = await sdk.conversations.create()
    made = await sdk.responses.create(**BODY, conversation=conversation.id)
    await eventually(lambda: sdk.unit.requests)
    if end == "cancel":
        cancelled = await sdk.responses.cancel(made.id)
        assert (cancelled.id, cancelled.status, cancelled.error) == (made.id, "cancelled", None)
        assert (await sdk.responses.cancel(made.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="is cancelled: it has no answer"):
            await sdk.responses.create(model="demo/bytes", input="x", previous_response_id=made.id)
    else:
        await sdk.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(made.id)
    await eventually(lambda: sdk.unit.cancelled)

    assert (await sdk.conversations.items.list(conversation.id)).data == []


async def test_background__streamed__goes_on_without_its_client_and_is_followed_from_any_event(sdk) -> None:
    stream = await sdk.responses.create(**BODY, stream=True)
    seen = []
    async for event in stream:
        seen.append(event)
        if len(seen) == 6:
            break
    await stream.close()
    made = seen[0].response
    resumed = [e async for e in await sdk.responses.retrieve(made.id, stream=True, starting_after=5)]
    whole = [e async for e in await sdk.responses.retrieve(made.id, stream=True)]

    assert [e.type for e in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert made.status == "queued"
    assert [e.sequence_number for e in seen + resumed] == [e.sequence_number for e in whole] == list(range(len(whole)))
    assert "".join(e.delta for e in whole if e.type == "response.output_text.delta") == "Sunny, with a little rain."
    assert (whole[-1].type, whole[-1].response) == ("response.completed", await sdk.responses.retrieve(made.id))
    assert sdk.unit.cancelled == []


async def test_background__fails__says_so_where_it_is_read_and_followed(sdk) -> None:
    sdk.unit.poison = ord("<")  # every unit dies under it
    made = await sdk.responses.create(**BODY, stream=True)
    events = [e async for e in made]
    read = await sdk.responses.retrieve(events[0].response.id)

    assert [e.type for e in events] == ["response.created", "response.queued", "response.failed"]
    assert (read.status, read.error.code) == ("failed", events[-1].response.error.code)
    assert read.error.message


async def test_background__what_cannot_be__is_refused(sdk) -> None:
    plain = await sdk.responses.create(model="demo/bytes", input="hi")
    unstreamed = await sdk.responses.create(**BODY)
    await ended(sdk, unstreamed.id)
    refused = {
        "store": sdk.responses.create(**BODY, store=False),
        "response_id": sdk.responses.cancel(plain.id),
        "starting_after": sdk.responses.retrieve(unstreamed.id, stream=True, extra_query={"starting_after": "x"}),
        "temperature": sdk.responses.create(**BODY, temperature=9),
    }
    for param, call in refused.items():
        with pytest.raises(openai.BadRequestError) as bad:
            await call
        assert bad.value.param == param
    for response in (plain, unstreamed):
        with pytest.raises(openai.BadRequestError, match="not made with 'background' and 'stream'"):
            _ = [e async for e in await sdk.responses.retrieve(response.id, stream=True)]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(**{**BODY, "model": "none"})


async def test_background__of_another_key__is_not_there(serve) -> None:
    served = await serve(FakeUnit())
    ann, bob = served.headers_of_keys("ann", "bob")
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        made = (await http.post("/v1/responses", json={**BODY, "stream": True}, headers=ann)).text
        path = "/v1/responses/resp_" + made.partition("resp_")[2][:32]
        replies = [await http.post(f"{path}/cancel", headers=who) for who in ({}, bob, ann)]

    assert [reply.status_code for reply in replies] == [401, 404, 200]


class Gateways:
    """Two gateways' stores and backgrounds, of which the second may be cut off."""

    def __init__(self, clock) -> None:
        self.alive: list[BackgroundResponses] = []
        self.stores = [ResponseStore(self._ask, clock=clock) for _ in range(2)]
        self.alive = [BackgroundResponses(store, self._ask_all) for store in self.stores]

    async def _ask(self, kept_id, owner):
        copies = [s.encoded(kept_id, owner) for s, b in zip(self.stores, self.both, strict=True) if b in self.alive]
        return newest([copy for copy in copies if copy is not None])

    async def _ask_all(self, method, *arguments):
        if method == "take_background":
            return [background.handover.take(*arguments) for background in self.alive]
        assert method == "response_events"
        return [background.events_after(*arguments) for background in self.alive]

    def tell(self) -> None:
        pages = [store.fresh_copies() for store in self.stores]
        for store, (told, _) in zip(self.stores, pages, strict=True):
            store.were_told(told)
            for _, page in pages:
                for copy in page:
                    store.take(copy)


class Answering:
    """Says `events` one by one, as the test lets it."""

    def __init__(self) -> None:
        self.more = asyncio.Semaphore(0)
        self.ends = False

    async def events(self):
        number = 0
        while True:
            await self.more.acquire()
            if self.ends:
                return
            yield b"data: %d\n\n" % number
            number += 1


@pytest.fixture
async def gateways():
    now = [0.0]
    both = Gateways(lambda: now[0])
    both.both, both.now = tuple(both.alive), now
    answering = Answering()
    document = {"id": "resp_1", "status": "queued", "background": True}
    future = asyncio.get_running_loop().create_future()
    future.set_result(answering)
    both.alive[0].start(document, "me", future, b"data: created\n\n")
    both.answering = answering
    running_both = [asyncio.create_task(background.run()) for background in both.alive]
    yield both
    for task in running_both:
        task.cancel()
    await asyncio.gather(*running_both, return_exceptions=True)


def status_of(document: bytes) -> str:
    return msgspec.json.decode(document)["status"]


async def test_background__read_and_followed_at_another_gateway__is_as_at_its_own(gateways) -> None:
    one, other = gateways.alive
    gateways.answering.more.release()
    gateways.tell()
    assert status_of(await other.read("resp_1", "me")) in ("queued", "in_progress")
    await eventually(lambda: one.events_after("resp_1", "me", 0) == ([b"data: 0\n\n"], False))
    assert status_of(await other.read("resp_1", "me")) == "in_progress"
    followed = await other.follow("resp_1", "me", -1)
    assert await anext(followed) == b"data: created\n\ndata: 0\n\n"

    cancelled = await other.cancel("resp_1", "me")
    gateways.tell()
    assert status_of(cancelled) == status_of(await one.read("resp_1", "me")) == "cancelled"
    assert [event async for event in followed] == []  # the gateway that works on it has noticed
    gateways.stores[0].keep("resp_1", "me", [], document=b'{"status":"completed"}')
    assert await one.read("resp_1", "me") == cancelled
    with pytest.raises(InvalidRequest):
        await other.follow("resp_1", "you", -1)


async def test_background__its_gateway_dies__is_failed_for_whoever_asks_and_for_good(gateways) -> None:
    one, other = gateways.alive
    gateways.tell()
    gateways.alive.remove(one)
    gateways.now[0] = LOST_S - 1
    before = status_of(await other.read("resp_1", "me"))
    gateways.now[0] = LOST_S + 1
    failed = await other.read("resp_1", "me")

    assert before == "queued"
    assert msgspec.json.decode(failed)["error"]["code"] == "gateway_lost"
    gateways.tell()  # it was cut off, and comes back
    assert await one.read("resp_1", "me") == await other.read("resp_1", "me") == failed


async def test_background__its_gateway_goes__is_finished_and_its_events_are_at_the_other(gateways) -> None:
    one, other = gateways.alive
    gateways.tell()
    gateways.alive.remove(one)  # Serve's handles reach none that goes
    going = asyncio.create_task(one.handover.finish())
    gateways.answering.more.release()
    followed = await followed_soon(other)
    assert await anext(followed) in (b"data: created\n\n", b"data: created\n\ndata: 0\n\n")
    gateways.tell()
    assert status_of(await other.read("resp_1", "me")) == "in_progress"
    assert not going.done()

    gateways.stores[0].keep("resp_1", "me", [], document=b'{"status":"completed"}')
    gateways.answering.ends = True
    gateways.answering.more.release()
    await asyncio.wait_for(going, 30)
    gateways.tell()
    assert status_of(await other.read("resp_1", "me")) == "completed"
    assert [e async for e in await other.follow("resp_1", "me", 0)] == [b"data: 0\n\n"]
    async for _ in followed:
        pass  # it comes to an end


async def test_background__cancelled_elsewhere_while_its_gateway_goes__the_work_stops(gateways) -> None:
    one, other = gateways.alive
    gateways.tell()
    gateways.alive.remove(one)
    going = asyncio.create_task(one.handover.finish())
    followed = await followed_soon(other)
    await other.cancel("resp_1", "me")

    await asyncio.wait_for(going, 30)
    assert [e async for e in followed] == [b"data: created\n\n"]
    assert one._running == {}


async def test_background__its_gateway_goes_and_no_other_is_there__nothing_is_waited_for(gateways) -> None:
    gateways.alive.clear()
    await asyncio.wait_for(gateways.both[0].handover.finish(), 30)

    assert list(gateways.both[0]._running) == ["resp_1"]


async def test_background__its_gateway_is_ended_while_it_goes__followers_come_to_an_end(gateways, monkeypatch) -> None:
    monkeypatch.setattr("router.responses.background_handover.LOST_S", 0.0)
    one, other = gateways.alive
    gateways.alive.remove(one)
    going = asyncio.create_task(one.handover.finish())
    followed = await followed_soon(other)
    going.cancel()

    assert [e async for e in followed] == [b"data: created\n\n"]


async def followed_soon(background: BackgroundResponses):
    """The gateway that goes tells the other within its next round."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(InvalidRequest):
                return await background.follow("resp_1", "me", -1)
            await asyncio.sleep(0.01)


async def test_background__its_gateway_lives_and_does_not_tell_others__is_not_failed(gateways) -> None:
    _, other = gateways.alive
    gateways.tell()
    gateways.now[0] = LOST_S + 1
    gateways.stores[0].put("resp_1", "me", b'{"id":"resp_1","status":"in_progress"}', is_open=True)  # renewed

    assert status_of(await other.read("resp_1", "me")) == "in_progress"


async def test_background__gateway_stops__the_engine_does_too(serve) -> None:
    unit = FakeUnit(token_gap_s=0.2)
    served = await serve(unit)
    async with contextlib.AsyncExitStack() as stack, running(served.gateway) as url:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        assert (await http.post("/v1/responses", json=BODY)).json()["status"] == "queued"
        await eventually(lambda: unit.requests)
    await eventually(lambda: unit.cancelled)


async def test_event_log__dropped__followers_are_told_and_it_takes_no_more() -> None:
    log = EventLog()
    log.append(b"a\n\nb\n\n")
    followed = log.follow(0)
    assert await anext(followed) == b"b\n\n"
    log.drop()
    log.append(b"c\n\n")
    with pytest.raises(InvalidRequest):
        await anext(followed)
    assert (log.size_bytes, log.num_events) == (0, 0)


async def test_logs__more_than_there_is_room_for__what_has_ended_goes_first(monkeypatch) -> None:
    monkeypatch.setattr("router.responses.background._MOST_LOG_BYTES", 25)
    background = BackgroundResponses(ResponseStore())

    class Short:
        async def events(self):
            yield b"data: 1\n\n"

    for number in range(4):
        future = asyncio.get_running_loop().create_future()
        future.set_result(Short())
        document = {"id": f"resp_{number}", "status": "queued", "background": True}
        background.start(document, "me", future, b"data: 0\n\n")
        await eventually(lambda number=number: status_of(background.store._kept[f"resp_{number}"].document) == "failed")
    await asyncio.sleep(0)

    assert sum(log.size_bytes for _, log in background._logs.values()) <= 25
