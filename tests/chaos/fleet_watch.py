"""What a fleet says of itself while something is done to it."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import httpx
import pytest
from chaos_faults import until_balanced
from chaos_load import MODELS, Load

_UNHEARD_S = 3.0
_READY_REPLICAS = r'^muxfleet_model_replicas\{(?=.*phase="ready").*model="(.*?)".*\} (\S+)$'


class WatchedFleet(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def output(self) -> str: ...


class Watch:
    """Looks at the fleet while something is done to it: the longest time without a word of its control loop, and the
    fewest units that had a model ready, as the control loop tells (`fewest`) and as gateways choose from them
    (`fewest_routable`). A unit that is not told of counts as before for a while: a fresh control loop hears of one
    after the other, while gateways keep what they know.
    """

    def __init__(self, url: str, *, units: int) -> None:
        self._url = url
        self.without_control_s = 0.0
        self.fewest = units
        self.fewest_routable = units
        self._ready: dict[str, list[str]] = {}
        self._missed_s: dict[str, float] = {}

    async def look(self) -> None:
        answered_s = time.monotonic()
        async with httpx.AsyncClient(timeout=3, trust_env=False) as http:
            while True:
                try:
                    response = await http.get(f"{self._url}/fleet")
                    if response.status_code == 200:
                        now_s = time.monotonic()
                        self.without_control_s = max(self.without_control_s, now_s - answered_s)
                        answered_s = now_s
                        self._count(response.json()["units"])
                    self._count_routable((await http.get(f"{self._url}/metrics")).text)
                except httpx.HTTPError:
                    pass  # so long the control loop is not heard
                await asyncio.sleep(0.2)

    def _count(self, units: list[dict[str, Any]]) -> None:
        told = {u["report"]["unit_id"]: _ready_on(u["report"]) for u in units}
        now_s = time.monotonic()
        self._missed_s = {u: self._missed_s.get(u, now_s) for u in self._ready.keys() - told.keys()}
        unheard = {u: self._ready[u] for u, since_s in self._missed_s.items() if now_s - since_s < _UNHEARD_S}
        self._ready = unheard | told
        ready = [model for models in self._ready.values() for model in models]
        self.fewest = min(self.fewest, *(ready.count(m) for m in MODELS))

    def _count_routable(self, metrics: str) -> None:
        """Gateways that have just begun know of no unit yet."""
        told = re.findall(_READY_REPLICAS, metrics, re.MULTILINE)
        known = {m: max((float(n) for model, n in told if model == m), default=None) for m in MODELS}
        self.fewest_routable = min([self.fewest_routable, *(int(n) for n in known.values() if n is not None)])


def _ready_on(report: dict[str, Any]) -> list[str]:
    return [] if report["is_leaving"] else [s["model"] for s in report["models"] if s["phase"] == "ready"]


async def until_replaced(pids: Callable[[], set[int]], before: set[int]) -> None:
    """Until none of these processes is left; the test's own limit ends it."""
    while pids() & before:  # noqa: ASYNC110  a state that sets no event
        await asyncio.sleep(0.2)


def through(
    fleet: WatchedFleet,
    load: Load,
    change: Callable[[], Awaitable[None]],
    name: str,
    capsys: pytest.CaptureFixture[str],
    *,
    units: int,
    after_s: float = 2.0,
) -> Watch:
    """Requests come while it is done. None is lost, refused or answered with other tokens, and the books balance."""
    watch = Watch(fleet.url, units=units)
    took_s: list[float] = []

    async def trouble() -> None:
        began_s = time.monotonic()
        looking = asyncio.create_task(watch.look())
        try:
            await change()
        finally:
            looking.cancel()
        took_s.append(time.monotonic() - began_s)

    run = load.through(trouble, after_s=after_s)
    told = {
        "change": name,
        "requests": len(run.answers),
        "lost": len(run.lost()),
        "refused": len(run.refused()),
        "longest_silence_s": round(run.longest_silence_s(), 1),
        "seconds": round(took_s[0], 1),
        "without_control_s": round(watch.without_control_s, 1),
        "fewest_ready_replicas": watch.fewest,
        "fewest_routable_replicas": watch.fewest_routable,
    }
    with capsys.disabled():
        print(f"\n  {json.dumps(told)}")
    assert not run.lost()
    assert not run.refused()
    assert not run.wrong()
    assert watch.fewest >= 1
    asyncio.run(until_balanced(fleet))
    return watch
