"""News of the fleet as the control loop sends them to gateways: msgpack, of which one copy serves them all."""

import msgspec

from router.view import FleetNews

_DECODER: msgspec.msgpack.Decoder[FleetNews] = msgspec.msgpack.Decoder(FleetNews)


def write_news(news: FleetNews) -> bytes:
    return msgspec.msgpack.encode(news)


def read_news(body: bytes) -> FleetNews:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(body)
