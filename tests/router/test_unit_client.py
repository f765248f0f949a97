import asyncio
import time
from contextlib import closing

import pytest
from fake_unit import TOKEN, FakeUnit, eventually

from pdmux_actor.errors import StreamRefused, UnitLost
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.frames import INITIAL_CREDIT, Cancel, Credit, Delta, encode
from router.transport import frame_connection
from router.transport.frame_connection import GatewayStood, SilenceLimits, Stall
from router.transport.unit_client import FrameStreamClient, UnitUnreachable


def request_of(max_tokens: int = 10, request_id: str = "r.0") -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        model="demo/bytes",
        prompt_token_ids=(1,),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0),
        slo=Slo(ttft_s=1, tbt_s=1),
    )


@pytest.fixture
async def unit():
    async with FakeUnit() as unit:
        yield unit


@pytest.fixture
async def client(unit):
    client = FrameStreamClient(unit.endpoint, TOKEN)
    yield client
    await client.close()


async def texts(client: FrameStreamClient, request: GenerateRequest) -> str:
    with closing(await client.open(request)) as deltas:
        return "".join([delta.text async for delta in deltas if isinstance(delta, Delta)])


async def test_streams__many_at_once__share_one_connection(unit, client) -> None:
    answers = await asyncio.gather(*(texts(client, request_of(30, f"r{i}.0")) for i in range(20)))

    assert len(set(answers)) == 1
    assert unit.connections == 1
    assert client.idle


async def test_credit__long_answer__is_granted_as_it_is_read(unit, client) -> None:
    await texts(client, request_of(400))

    assert 400 - INITIAL_CREDIT - INITIAL_CREDIT // 2 <= unit.granted[0] <= 400


async def test_credit__reader_pauses__unit_stops_sending(unit, client) -> None:
    with closing(await client.open(request_of(1000))) as deltas:
        await anext(deltas)
        await asyncio.sleep(0.3)
        stream = client._connection._streams[0]

        assert len(stream._arrived) <= INITIAL_CREDIT


async def test_close__before_the_end__sends_cancel_and_only_then(unit, client) -> None:
    unit.token_gap_s = 0.01
    with closing(await client.open(request_of(500))) as deltas:
        await anext(deltas)
    await eventually(lambda: unit.cancelled == ["r.0"])
    unit.token_gap_s = 0
    await texts(client, request_of(5, "q.0"))

    sent = [unit.received.get_nowait() for _ in range(unit.received.qsize())]
    assert [m.stream for m in sent if isinstance(m, Cancel)] == [0]


async def test_connection__breaks__open_streams_raise_and_next_one_reconnects(unit, client) -> None:
    unit.fuse.append(5)
    with pytest.raises(UnitLost) as lost:
        await texts(client, request_of(50))
    answer = await texts(client, request_of(5))

    assert not isinstance(lost.value, UnitUnreachable)
    assert answer
    assert unit.connections == 2


async def test_unit__absent__unreachable_then_backs_off(unit, client) -> None:
    await unit.__aexit__()
    with pytest.raises(UnitUnreachable, match="cannot connect"):
        await texts(client, request_of())
    assert not client.reachable
    with pytest.raises(UnitUnreachable, match="next attempt"):
        await texts(client, request_of())


async def test_token__wrong__refused(unit) -> None:
    client = FrameStreamClient(unit.endpoint, "not the token")
    with pytest.raises(StreamRefused, match="wrong token"):
        await texts(client, request_of())
    await client.close()


@pytest.fixture
async def make_client(unit, monkeypatch):
    """Clients that beat fast."""
    monkeypatch.setattr(frame_connection, "HEARTBEAT_S", 0.05)
    clients = []

    def make(**silence: float) -> FrameStreamClient:
        clients.append(FrameStreamClient(unit.endpoint, TOKEN, SilenceLimits(**silence)))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def test_unit__silent__streams_are_told_of_the_stall_then_it_is_lost(unit, make_client) -> None:
    client = make_client(suspect_s=0.1, lost_s=0.4)
    unit.mute = True
    unit.token_gap_s = 600
    heard = []

    async def listen() -> None:
        async for item in await client.open(request_of()):
            heard.append(item)
            assert not client.reachable

    with pytest.raises(UnitLost, match="silent"):
        await listen()

    assert heard
    assert all(isinstance(item, Stall) and "silent" in item.reason for item in heard)


async def test_unit__says_that_it_stalls__streams_are_told_and_go_on_when_it_comes_to_itself(unit, client) -> None:
    unit.token_gap_s = 0.02
    answer = await client.open(request_of(20))
    first = await anext(answer)
    unit.stalled = True
    async for item in answer:
        if isinstance(item, Stall):
            break
    assert "no progress" in item.reason
    assert not client.reachable
    unit.stalled = False

    texts_left = [item.text async for item in answer if isinstance(item, Delta)]

    assert isinstance(first, Delta)
    assert texts_left
    assert client.reachable, "it spoke since"


async def test_heartbeat__idle_but_alive_unit__keeps_the_connection(unit, make_client) -> None:
    client = make_client(suspect_s=0.4, lost_s=0.5)
    await texts(client, request_of())
    await asyncio.sleep(1.0)
    await texts(client, request_of())

    assert unit.connections == 1


async def test_heartbeat__own_loop_was_held_up__unit_is_not_called_silent(unit, make_client) -> None:
    client = make_client(suspect_s=0.1, lost_s=0.1)
    unit.token_gap_s = 0.01
    asking = asyncio.create_task(texts(client, request_of(30)))
    await eventually(lambda: unit.requests)
    time.sleep(0.3)  # noqa: ASYNC251 - it is the loop that is to stand still
    # The beat that is due: uvloop runs it before it reads sockets.
    client._connection._on_beat(asyncio.get_running_loop().time(), punctual=False)

    assert len(await asking) > 20
    assert unit.connections == 1


@pytest.mark.parametrize(("stands_s", "error"), [(0.5, GatewayStood), (0.0, UnitLost)])
async def test_connection__unit_ends_it__own_loop_is_blamed_where_it_stood(
    unit, make_client, monkeypatch, stands_s, error
) -> None:
    monkeypatch.setattr(frame_connection, "SILENCE_S", 0.4)
    client = make_client()
    unit.token_gap_s = 600
    asking = asyncio.create_task(texts(client, request_of()))
    await eventually(lambda: unit.requests)
    time.sleep(stands_s)  # noqa: ASYNC251 - it is the loop that is to stand still
    unit.drop_connections()

    with pytest.raises(UnitLost) as lost:
        await asking

    assert type(lost.value) is error


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        encode(Credit(stream=0, deltas=1)),
        encode(Delta(stream=0, sequence=7, text="x", token_ids=[1])),
    ],
    ids=["huge frame", "not for a gateway", "a Delta is missing"],
)
async def test_unit__breaks_the_protocol__connection_is_dropped(unit, client, garbage: bytes) -> None:
    unit.token_gap_s = 600
    asking = asyncio.create_task(texts(client, request_of()))
    await eventually(lambda: unit.requests)
    for writer in unit._writers:
        writer.write(garbage)

    with pytest.raises(UnitLost, match="protocol"):
        await asking


async def test_client__closed__pending_request_fails(unit, client) -> None:
    unit.token_gap_s = 600
    asking = asyncio.create_task(texts(client, request_of()))
    await eventually(lambda: unit.requests)
    await client.close()

    with pytest.raises(UnitLost, match="closed"):
        await asking
