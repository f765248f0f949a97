"""Topics that consoles follow, and what they show of requests and keys."""

import asyncio
import gc

import msgspec
import pytest
from starlette.testclient import TestClient

from pdmux_actor.messages import Slo
from router.access.access_control import AccessControl
from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.access.key_figures import summed_figures
from router.errors import InvalidRequest, RateLimited
from router.http.app import create_app
from router.http.live_feed import EVERY_S, LiveFeed, LiveTopic
from router.http.live_routes import LiveSources
from router.request_terms import GrantedSlo
from router.serving.gateway import Gateway
from router.telemetry.service_report import ReceiptBook, ServiceReport, merged_receipts

FLEET = LiveTopic("fleet")


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.says: bytes | None = b'"a"'

    async def read(self, topic: str, about) -> bytes | None:
        self.reads += 1
        return self.says


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http.live_feed.EVERY_S", dict.fromkeys(EVERY_S, 0.01))


async def test_events__several_follow__are_read_once_for_all(fast: None) -> None:
    source = Source()
    feed = LiveFeed(source.read)
    streams = [feed.events([FLEET]) for _ in range(10)]
    firsts = await asyncio.gather(*(anext(s) for s in streams))

    assert set(firsts) == {b'event: fleet\ndata: "a"\n\n'}
    assert source.reads == 1
    for stream in streams:
        await stream.aclose()


async def test_events__the_last_follower_leaves__nothing_is_read_any_more(fast: None) -> None:
    source = Source()
    feed = LiveFeed(source.read)
    stream = feed.events([FLEET])
    await anext(stream)
    await stream.aclose()
    reads = source.reads
    await asyncio.sleep(0.1)
    assert source.reads == reads
    assert await anext(feed.events([FLEET])) == b'event: fleet\ndata: "a"\n\n'  # and again for the next


async def test_events__nothing_has_changed__are_not_sent_again(fast: None) -> None:
    source = Source()
    stream = LiveFeed(source.read).events([FLEET])
    await anext(stream)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream)


async def test_events__nobody_answers__says_so_once(fast: None) -> None:
    source = Source()
    stream = LiveFeed(source.read).events([FLEET])
    await anext(stream)
    source.says = None
    assert await anext(stream) == b'event: silent\ndata: "fleet"\n\n'
    source.says = b'"b"'
    assert await anext(stream) == b'event: fleet\ndata: "b"\n\n'
    await stream.aclose()


async def test_events__a_stream_has_run_long_enough__ends(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http.live_feed.STREAM_S", 0.1)
    assert [e async for e in LiveFeed(Source().read).events([FLEET])] == [b'event: fleet\ndata: "a"\n\n']


def served(keys: KeyRing | None = None) -> TestClient:
    gateway = Gateway()
    gateway.access.set_keys(keys)

    async def what_if(changes) -> bytes | None:
        return None

    return TestClient(create_app(gateway, live=LiveSources(read_topic=Source().read, what_if=what_if)))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "topic is missing"),
        ("topic=weather", "topic 'weather' is none"),
        ("topic=fleet&colour=red", "'colour'"),
        ("topic=requests&pool=a", "'pool'"),
        ("topic=unit", "send unit=ID"),
        ("topic=fleet&find=" + "x" * 300, "longer than 256"),
    ],
)
def test_live__asked_wrongly__says_what_to_send(query: str, says: str) -> None:
    answer = served().get(f"/fleet/live?{query}")
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_live_and_what_if__key_missing_or_not_an_admins__are_refused() -> None:
    key = make_key()
    client = served(KeyRing([KeyEntry(key_id=key.key_id, name="app", hash=key.hash)]))
    bearer = {"authorization": f"Bearer {key.secret}"}
    for ask in (
        lambda **given: client.get("/fleet/live?topic=fleet", **given),
        lambda **given: client.post("/fleet/what-if", json={"rates": {"m": 1}}, **given),
    ):
        assert ask().status_code == 401
        assert ask(headers=bearer).status_code == 403


# ---- receipts ----


def note(book: ReceiptBook, name: str, elapsed_s: float, **state) -> None:
    told = {"request_id": name, "model": "m", **state}
    book.note(told, endpoint="/v1/chat/completions", status=200, elapsed_s=elapsed_s)


def test_receipts__many_requests__keep_the_last_and_the_slowest_and_no_more() -> None:
    clock = [1000.0]
    book = ReceiptBook(lambda: clock[0])
    for i in range(10_000):
        clock[0] += 0.01
        note(book, f"r{i}", 100.0 if i == 5 else 0.001 * (i % 100))
    told = book.told()

    assert [r.request_id for r in told.last[:2]] == ["r9999", "r9998"]
    assert told.slowest[0].request_id == "r5"
    assert (len(told.last), len(told.slowest)) == (64, 32)
    clock[0] += 1300.0
    note(book, "late", 0.1)
    assert [r.request_id for r in book.told().slowest] == ["late"]


def test_receipts__of_two_gateways__are_what_one_would_keep() -> None:
    books = [ReceiptBook(lambda at=at: at) for at in (1.0, 2.0)]
    for i, book in enumerate(books):
        note(book, f"r{i}", 1.0 - i / 2)
    told = merged_receipts(b.told() for b in books)
    assert [r.request_id for r in told.last] == ["r1", "r0"]
    assert [r.request_id for r in told.slowest] == ["r0", "r1"]


def test_receipt__of_a_request_that_waited_and_moved__says_for_what() -> None:
    report = ServiceReport(granted=GrantedSlo(slo=Slo(ttft_s=1.0, tbt_s=0.1)), started_s=10.0)
    report.waits("KV blocks of m")
    report.waits("something later")
    report.admitted("u", 12.0, cold_s=0.5, predicted_ttft_s=0.2, prefix_tokens=3, ahead_s=0.1)
    report.moved("u", "it died", 12.5)
    report.first_token(13.0)
    book = ReceiptBook()
    note(book, "r", 4.0, report=report)
    (told,) = book.told().last

    assert told.waited_for == "KV blocks of m"
    assert (told.queue_s, told.cold_s, told.prefill_s, told.ahead_s, told.ttft_s) == (2.0, 0.5, 1.0, 0.1, 3.0)
    assert [(m.unit, m.at_s, m.reason) for m in told.moves] == [("u", 2.5, "it died")]


def test_receipt__of_a_refused_request__keeps_the_words_and_not_the_request() -> None:
    class Body:
        pass

    def refused() -> tuple[InvalidRequest, int]:
        body = Body()
        try:
            raise InvalidRequest("too long", param="messages")
        except InvalidRequest as error:
            return error, id(body)

    book = ReceiptBook()
    error, _ = refused()
    note(book, "r", 0.1, error=error)
    del error
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Body)]
    assert "too long" in book.told().last[0].error


# ---- keys ----


def test_key_figures__requests_of_two_gateways__are_counted_by_key() -> None:
    key = make_key()
    entry = KeyEntry(
        key_id=key.key_id, name="app", hash=key.hash, models=frozenset({"m"}), requests_per_minute=2, is_admin=True
    )
    gateways = [AccessControl(clock=lambda: 0.0, num_gateways=lambda: 2, on_keys=lambda names: None) for _ in "ab"]
    for access in gateways:
        access.set_keys(KeyRing([entry]))
        who = access.identify(headers(key.secret))
        access.enter(who, "m")
        access.spend(key.key_id, 70)
        with pytest.raises(RateLimited):
            access.enter(who, "m")
    (told,) = summed_figures(a.figures({"app": 30}) for a in gateways)

    assert (told.name, told.requests, told.tokens, told.rate_limited) == ("app", 2, 140, 2)
    assert (told.recent_tokens, told.waiting_tokens) == (140, 60)
    assert (told.limit_requests, told.remaining_requests, told.limit_tokens) == (2, 0, None)
    assert key.secret.encode() not in msgspec.json.encode(told)


def headers(secret: str):
    from starlette.datastructures import Headers

    return Headers({"authorization": f"Bearer {secret}"})
