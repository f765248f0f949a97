"""What a fleet says of itself while something is done to it."""

import asyncio
import time
from typing import Any

import httpx
from chaos_load import MODELS

_UNHEARD_S = 3.0


class Watch:
    """Looks at the fleet while something is done to it: the longest time without a word of its control loop, and the
    fewest units that had a model ready. A unit that is not told of counts as before for a while: a fresh control loop
    hears of one after the other.
    """

    def __init__(self, url: str, *, units: int) -> None:
        self._url = url
        self.without_control_s = 0.0
        self.fewest = units
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


def _ready_on(report: dict[str, Any]) -> list[str]:
    return [] if report["is_leaving"] else [s["model"] for s in report["models"] if s["phase"] == "ready"]
