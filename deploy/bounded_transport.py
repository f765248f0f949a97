"""Hears a server out for a bounded time: whatever listens at an address that an operator typed may talk without end."""

import time
from collections.abc import Iterator, Mapping
from typing import cast

import httpx

_MOST_BYTES = 256 << 20


class BoundedTransport(httpx.HTTPTransport):
    """Gives an answer as a whole no longer than the request's read timeout, which httpx begins anew with every byte.
    Not for streams of events.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        began_s = time.monotonic()
        response = super().handle_request(request)
        until_s = began_s + request.extensions["timeout"]["read"]
        response.stream = _BoundedBody(cast(httpx.SyncByteStream, response.stream), until_s)
        return response


class _BoundedBody(httpx.SyncByteStream):
    def __init__(self, body: httpx.SyncByteStream, until_s: float) -> None:
        self._body = body
        self._until_s = until_s

    def __iter__(self) -> Iterator[bytes]:
        told_bytes = 0
        for part in self._body:
            told_bytes += len(part)
            if time.monotonic() > self._until_s or told_bytes > _MOST_BYTES:
                raise httpx.ReadTimeout(f"its answer had no end after {told_bytes} bytes")
            yield part

    def close(self) -> None:
        self._body.close()


def bounded_get(
    url: str, *, timeout_s: float, headers: Mapping[str, str], params: Mapping[str, str] | None = None
) -> httpx.Response:
    """Asks once. Raises what `httpx.get` does, ReadTimeout also of an answer that does not end."""
    with httpx.Client(transport=BoundedTransport(trust_env=False), timeout=timeout_s, trust_env=False) as client:
        return client.get(url, headers=headers, params=params)
