"""Follows what a running fleet's gateway tells consoles, by server-sent events."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import httpx

from deploy.environment import bearer_headers
from deploy.errors import ControlLoopUnreachable, FleetUnreachable
from deploy.inspection.fleet_report import check_answer, decoded, path_of, reaching
from deploy.inspection.live_fleet import LiveFleet
from router.access.key_figures import KeysReport

_PATH = "/fleet/live"
_TIMEOUT_S = 30.0  # twice as long as a stream is silent
_AGAIN_S = 0.2
_LOST_S = 1.0


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """`data` is JSON: docs/console.md has the schema of each topic."""

    topic: str
    data: bytes


def live_events(url: str, topic: str, about: Mapping[str, str] | None = None) -> Iterator[LiveEvent]:
    """Yields what the topic says now and whenever it has changed, until the gateway ends the stream. Raises
    FleetUnreachable.
    """
    asked = {"topic": topic, **(about or {})}
    with (
        reaching(url),
        httpx.stream(
            "GET", path_of(url, _PATH), params=asked, headers=bearer_headers(), timeout=_TIMEOUT_S, trust_env=False
        ) as response,
    ):
        if response.status_code != 200:
            response.read()
        check_answer(url, _PATH, response)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise FleetUnreachable(address=url, reason=f"{_PATH} is no fleet's: no event stream; correct the URL")
        name = ""
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield LiveEvent(name, value.encode())


def fleet_events(url: str) -> Iterator[LiveFleet]:
    """Yields the fleet now and whenever it has changed, until the stream ends. Raises FleetUnreachable."""
    for event in live_events(url, "fleet"):
        if event.topic != "fleet":
            raise ControlLoopUnreachable(address=url, reason="requests are served all the same")
        yield decoded(url, event.data, LiveFleet, f"{_PATH} is not a fleet")


class FollowedFleet:
    """Follows a fleet from a thread of its own, which ends with the process. Raises FleetUnreachable: nobody tells
    anything at first.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._news: queue.SimpleQueue[LiveFleet | FleetUnreachable] = queue.SimpleQueue()
        threading.Thread(target=self._follow, name="live fleet", daemon=True).start()
        try:
            first = self._news.get(timeout=_TIMEOUT_S)
        except queue.Empty:  # it talks, and says nothing
            raise FleetUnreachable(address=url, reason=f"{_PATH} tells of no fleet; correct the URL") from None
        if isinstance(first, FleetUnreachable):
            raise first
        self._fleet, self._trouble = first, ""

    def look(self) -> tuple[LiveFleet, str]:
        """Returns the newest picture, and why there is no newer one: "" while there is nothing to say."""
        while not self._news.empty():
            news = self._news.get_nowait()
            if isinstance(news, FleetUnreachable):
                self._trouble = str(news)
            else:
                self._fleet, self._trouble = news, ""
        return self._fleet, self._trouble

    def _follow(self) -> None:
        while True:
            pause_s = _AGAIN_S
            try:
                for fleet in fleet_events(self._url):
                    self._news.put(fleet)
            except FleetUnreachable as error:  # it may be restarting
                self._news.put(error)
                pause_s = _LOST_S
            time.sleep(pause_s)


def key_shares(url: str) -> KeysReport | None:
    """None: the gateways do not tell. Raises FleetUnreachable."""
    event = next(live_events(url, "keys"), None)
    if event is None or event.topic != "keys":
        return None
    return cast(KeysReport, decoded(url, event.data, KeysReport, "its keys are not"))
