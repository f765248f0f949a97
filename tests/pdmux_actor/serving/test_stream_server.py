import asyncio
import struct

import msgspec
import pytest

from pdmux_actor.messages import FinishReason, SampledToken, TokenEvent
from pdmux_actor.serving.frames import HEARTBEAT_S, Cancel, Credit, Delta, Generate, Hello, Ping, Refused, Welcome
from pdmux_actor.serving.gateway_connection import StreamSettings
from pdmux_actor.serving.stream_server import StreamServer


class NoStreams:
    """A handler for tests of what comes before any stream."""

    def open(self, message, send):
        raise AssertionError("no stream was to be opened")

    def cancel(self, stream):
        raise AssertionError("no stream was to be cancelled")

    def is_stalled(self):
        return False


@pytest.fixture
async def serve():
    servers = []

    async def make(token="secret", **changes) -> str:
        server = StreamServer(StreamSettings(unit_id="u1", **changes), NoStreams())
        servers.append(server)
        port = await server.start("127.0.0.1")
        if token is not None:
            server.set_token(token)
        return f"127.0.0.1:{port}"

    yield make
    for server in servers:
        await server.stop()


@pytest.fixture
async def leased_unit(make_unit, fake_engine, make_lease, until, phases):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    return unit


async def assert_refused(peer, reason: str):
    frame = await peer.next()
    assert isinstance(frame, Refused)
    assert reason in frame.reason
    assert await peer.next() is None


async def test_stream_server__right_token__welcomes(serve, connect):
    peer = await connect(await serve())

    assert await peer.next() == Welcome("u1")


async def test_stream_server__wrong_token__refuses_and_closes(serve, connect):
    await assert_refused(await connect(await serve(), token="sécret"), "wrong stream token")


async def test_stream_server__no_lease_yet__refuses(serve, connect):
    await assert_refused(await connect(await serve(token=None)), "no lease yet")


async def test_stream_server__other_version__refuses(serve, connect):
    await assert_refused(await connect(await serve(), version=99), "protocol version 99")


async def test_stream_server__no_hello__refuses_at_the_deadline(serve, connect):
    await assert_refused(await connect(await serve(hello_deadline_s=0.05), token=None), "no Hello in 0.05 s")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">I", 5000), "frame of 5000 bytes, limit 4096"),
        (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "malformed"),
        (struct.pack(">I", 7) + msgspec.msgpack.encode("hello!"), "Expected `object`"),
        (struct.pack(">I", 11) + msgspec.msgpack.encode({"type": "ping"}), "begins with Hello"),
    ],
)
async def test_stream_server__garbage_before_hello__refuses(serve, connect, data, reason):
    peer = await connect(await serve(), token=None)

    peer.writer.write(data)

    await assert_refused(peer, reason)


async def test_stream_server__frame_above_limit_after_hello__refuses(serve, connect):
    peer = await connect(await serve())
    assert isinstance(await peer.next(), Welcome)

    peer.writer.write(struct.pack(">I", 2**31))

    await assert_refused(peer, f"frame of {2**31} bytes")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Hello(version=1, token="secret"), "a second Hello"),
        (Credit(stream=1, deltas=0), "credit of 0"),
        (Welcome("u"), "Invalid value 'welcome'"),
    ],
)
async def test_stream_server__message_out_of_place__refuses(serve, connect, message, reason):
    peer = await connect(await serve())
    assert isinstance(await peer.next(), Welcome)

    peer.send(message)

    await assert_refused(peer, reason)


async def test_stream_server__silent_gateway__is_dropped(serve, connect):
    peer = await connect(await serve(silence_s=0.3))
    assert isinstance(await peer.next(), Welcome)

    assert await peer.next() is None


async def test_stream_server__idle__pings(serve, connect):
    peer = await connect(await serve())
    assert isinstance(await peer.next(), Welcome)

    async with asyncio.timeout(60 * HEARTBEAT_S):
        data = await peer.reader.readexactly(4)
        data = await peer.reader.readexactly(int.from_bytes(data))

    assert msgspec.msgpack.decode(data) == {"type": "ping", "stalled": False}


async def test_stream_server__stopped__closes_connections_and_port(serve, connect):
    server = StreamServer(StreamSettings(unit_id="u"), NoStreams())
    server.set_token("secret")
    endpoint = f"127.0.0.1:{await server.start('127.0.0.1')}"
    peer = await connect(endpoint)
    assert isinstance(await peer.next(), Welcome)

    await server.stop()

    assert await peer.next() is None
    with pytest.raises(OSError, match="Connect call failed"):
        await connect(endpoint)


async def test_stream_server__stream_id_in_use__refuses_and_aborts(
    leased_unit, connect, make_request, fake_engine, until
):
    peer = await connect(leased_unit)
    peer.send(Generate(stream=1, request=make_request("a")), Generate(stream=1, request=make_request("b")))
    assert isinstance(await peer.next(), Welcome)

    await assert_refused(peer, "stream 1 is open already")

    await until(lambda: not fake_engine.requests)


async def test_stream_server__gateway_gone__aborts_its_streams_only(
    leased_unit, connect, make_request, fake_engine, until
):
    leaving, staying = await connect(leased_unit), await connect(leased_unit)
    leaving.send(Generate(stream=1, request=make_request("a")), Generate(stream=2, request=make_request("b")))
    staying.send(Generate(stream=1, request=make_request("a")))
    await until(lambda: len(fake_engine.requests) == 3)

    leaving.writer.transport.abort()

    await until(lambda: len(fake_engine.requests) == 1)
    (left,) = fake_engine.requests
    fake_engine.emit(TokenEvent(request_id=left, finish=FinishReason.LENGTH))
    await staying.until_finished(1)


async def test_stream_server__cancel__frees_the_sequence_and_sends_no_more(
    leased_unit, connect, make_request, fake_engine, until
):
    peer = await connect(leased_unit)
    peer.send(Generate(stream=1, request=make_request("a")), Generate(stream=2, request=make_request("b")))
    await until(lambda: len(fake_engine.requests) == 2)
    first, second = fake_engine.requests

    peer.send(Cancel(stream=1), Cancel(stream=99), Ping())
    await until(lambda: first not in fake_engine.requests)
    fake_engine.emit(TokenEvent(request_id=second, finish=FinishReason.LENGTH))
    await peer.until_finished(2)

    assert 1 not in peer.deltas


async def test_stream_server__no_credit__deltas_wait_and_merge(leased_unit, connect, make_request, fake_engine, until):
    peer = await connect(leased_unit)
    peer.send(Generate(stream=1, request=make_request("a"), credit=1))
    await until(lambda: fake_engine.requests)
    (request_id,) = fake_engine.requests
    for token_id in range(40, 50):
        fake_engine.emit(TokenEvent(request_id=request_id, tokens=(SampledToken(token_id),)))
    assert isinstance(await peer.next(), Welcome)
    first = await peer.next()
    assert first.token_ids == [40]

    peer.send(Credit(stream=1, deltas=1))
    second = await peer.next()
    fake_engine.emit(TokenEvent(request_id=request_id, tokens=(SampledToken(50),), finish=FinishReason.LENGTH))
    third = await peer.next()

    assert second.token_ids == list(range(41, 50))
    assert (third.token_ids, third.finish) == ([50], FinishReason.LENGTH)


async def test_stream_server__one_step_for_many_streams__arrives_in_one_read(
    leased_unit, connect, make_request, fake_engine, until
):
    peer = await connect(leased_unit)
    peer.send(*(Generate(stream=i, request=make_request(f"r{i}")) for i in range(20)))
    assert isinstance(await peer.next(), Welcome)
    await until(lambda: len(fake_engine.requests) == 20)

    fake_engine.emit(*(TokenEvent(request_id=r, finish=FinishReason.LENGTH) for r in tuple(fake_engine.requests)))
    data = b""
    async with asyncio.timeout(60):
        while b"delta" not in data:  # a Ping may come first
            data = await peer.reader.read(1 << 20)

    assert data.count(b"delta") == 20


async def test_stream_server__too_many_streams__refuses_the_stream_not_the_gateway(
    make_request, connect, fake_engine, make_unit, make_lease, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    server = StreamServer(StreamSettings(unit_id="u", max_streams=1), unit)
    server.set_token("secret")
    peer = await connect(f"127.0.0.1:{await server.start('127.0.0.1')}")
    peer.send(Generate(stream=1, request=make_request("a")), Generate(stream=2, request=make_request("b")))
    assert isinstance(await peer.next(), Welcome)

    refused = await peer.next()

    assert isinstance(refused, Delta)
    assert (refused.stream, refused.finish, refused.retryable) == (2, FinishReason.ERROR, True)
    await server.stop()
