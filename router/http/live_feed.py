"""Topics that consoles follow by server-sent events. Each is read once for all who follow it, and by nobody else."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from router.errors import TooManyFollowers

ReadTopic = Callable[[str, Mapping[str, str]], Awaitable[bytes | None]]
"""A topic and what it is asked about; its JSON now, None when who knows it does not answer."""

EVERY_S: Mapping[str, float] = MappingProxyType(
    {"fleet": 0.5, "history": 3600.0, "unit": 2.0, "requests": 1.0, "plan": 2.0, "keys": 2.0}
)
"""How often each topic is looked at; what has not changed is not sent again."""

STREAM_S = 15.0
"""A stream ends after so long, and its client asks again: a gateway that shuts down does not wait for consoles."""

_MOST_FOLLOWERS = 64
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """`about` are names and values, in the order of names."""

    name: str
    about: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class _Follower:
    news: dict[str, bytes] = field(default_factory=dict)  # the newest of each topic
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, name: str, event: bytes) -> None:
        self.news[name] = event
        self.has_news.set()


@dataclass(slots=True, eq=False)
class _Channel:
    reading: asyncio.Task[None]
    followers: set[_Follower] = field(default_factory=set)
    last: bytes | None = None


class LiveFeed:
    def __init__(self, read: ReadTopic) -> None:
        self._read = read
        self._channels: dict[LiveTopic, _Channel] = {}
        self._num_followers = 0

    def check_room(self) -> None:
        """Raises TooManyFollowers."""
        if self._num_followers >= _MOST_FOLLOWERS:
            raise TooManyFollowers(limit=_MOST_FOLLOWERS, retry_after_s=_RETRY_AFTER_S)

    async def events(self, topics: Sequence[LiveTopic]) -> AsyncGenerator[bytes, None]:
        """Yields what the topics say now, and whenever one says something else. A follower that reads slowly gets the
        newest, not all.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STREAM_S
        follower = _Follower()
        self._num_followers += 1
        for topic in topics:
            self._follow(topic, follower)
        try:
            while (left_s := until_s - loop.time()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await follower.has_news.wait()
                except TimeoutError:
                    return
                news, follower.news = follower.news, {}
                follower.has_news.clear()
                yield b"".join(news.values())
        finally:
            self._num_followers -= 1
            for topic in topics:
                self._leave(topic, follower)

    def _follow(self, topic: LiveTopic, follower: _Follower) -> None:
        channel = self._channels.get(topic)
        if channel is None:
            channel = self._channels[topic] = _Channel(asyncio.create_task(self._keep_reading(topic)))
        channel.followers.add(follower)
        if channel.last is not None:
            follower.tell(topic.name, channel.last)

    def _leave(self, topic: LiveTopic, follower: _Follower) -> None:
        channel = self._channels[topic]
        channel.followers.discard(follower)
        if not channel.followers:
            del self._channels[topic]
            channel.reading.cancel()

    async def _keep_reading(self, topic: LiveTopic) -> None:
        """Ends when nobody follows any more."""
        about = dict(topic.about)
        while True:
            body = await self._read(topic.name, about)
            name, data = (topic.name, body) if body is not None else ("silent", msgspec.json.encode(topic.name))
            event = b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
            channel = self._channels[topic]
            if event != channel.last:
                channel.last = event
                for follower in channel.followers:
                    follower.tell(topic.name, event)
            await asyncio.sleep(EVERY_S[topic.name])
