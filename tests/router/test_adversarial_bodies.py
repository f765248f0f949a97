"""Bodies of clients that want to keep a gateway busy, all at once: whoever else asks is answered, and the loop is free.

`pytest tests/router/test_adversarial_bodies.py -s` prints the worst of the probes. What keeps the event loop is held to
what reading a full body takes at that moment: a busy machine lengthens both, seconds of CPU too.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from adversarial_bodies import ADVERSARIES, CHAT

MAX_READINGS = 8.0  # it is 2 to 4; bodies that did keep the loop took two hundred and more
_CALM_S = 3.0
_AT_ONCE = 12  # bodies under way; each is some megabytes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, str(here / "adversarial_server.py"), str(tmp_path / "models")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=here.parents[1],
        env={"PYTHONPATH": f"{here.parents[1]}:{here}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    yield process
    process.kill()
    process.wait()


class Probes:
    """Asks beside the trouble, without a pause, and remembers the longest wait."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.health_s: list[float] = []
        self.first_token_s: list[float] = []

    def worst_since_last(self) -> str:
        worst = f"/health {max(self.health_s):.3f} s, neighbour's first token {max(self.first_token_s):.3f} s"
        self.health_s.clear()
        self.first_token_s.clear()
        return worst

    async def ask_health(self) -> None:
        while True:
            began_s = time.perf_counter()
            assert (await self._http.get("/health")).status_code == 200
            self.health_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.02)

    async def ask_for_tokens(self) -> None:
        body = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
        while True:
            began_s = time.perf_counter()
            async with self._http.stream("POST", CHAT, json=body) as reply:
                assert reply.status_code == 200
                lines = [line async for line in self._timed(reply, began_s)]
            assert lines[-1] == "data: [DONE]"
            await asyncio.sleep(0.05)

    async def _timed(self, reply: httpx.Response, began_s: float) -> AsyncIterator[str]:
        is_first = True
        async for line in reply.aiter_lines():
            if is_first:
                self.first_token_s.append(time.perf_counter() - began_s)
            is_first = False
            if line:
                yield line


async def trouble(http: httpx.AsyncClient) -> dict[str, int]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def send(name: str) -> int:
        async with room:
            adversary = ADVERSARIES[name]
            body = await asyncio.to_thread(adversary.build)
            reply = await http.post(adversary.path, content=body, headers={"content-type": "application/json"})
            return reply.status_code

    statuses = await asyncio.gather(*(send(name) for name in ADVERSARIES))
    return dict(zip(ADVERSARIES, statuses, strict=True))


@pytest.mark.timeout(400)
async def test_adversarial_bodies__fifty_kinds_at_once__neighbours_are_served_and_the_loop_is_free(
    server: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.stdout is not None
    assert server.stdin is not None
    assert len(ADVERSARIES) >= 50
    url = json.loads(await asyncio.to_thread(server.stdout.readline))["url"]
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits) as http,
        httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as probing,
    ):
        probes = Probes(probing)
        asking = [asyncio.create_task(probes.ask_health()), asyncio.create_task(probes.ask_for_tokens())]
        await asyncio.sleep(_CALM_S)
        in_peace = probes.worst_since_last()
        statuses = await trouble(http)
        in_trouble = probes.worst_since_last()
        assert not any(task.done() for task in asking), [task.exception() for task in asking if task.done()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    server.stdin.close()
    figures = json.loads(await asyncio.to_thread(server.stdout.readline))

    with capsys.disabled():
        print(
            f"\n  worst of the probes in peace: {in_peace}; beside {len(statuses)} kinds of bodies: {in_trouble}; "
            f"longest callback {figures['worst_s']:.3f} s, {figures['worst_cpu_s']:.3f} s of CPU, "
            f"{figures['worst_readings']:.1f} times reading a full body",
            end="",
        )
    wrong = {name: status for name, status in statuses.items() if status not in ADVERSARIES[name].statuses}
    assert not wrong
    assert figures["worst_readings"] < MAX_READINGS, figures
