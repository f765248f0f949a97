"""A fleet that `serve deploy` has put on a Ray cluster, as KubeRay does."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import yaml
from chaos_faults import until_well
from fleet_process import command_line
from ray_nodes import RayNodes

_BIN = Path(sys.executable).parent
_DEADLINE_S = 240.0
_END_SERVES_CONTROLLER = """
import ray
ray.init(log_to_driver=False)
ray.kill(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve"), no_restart=True)
"""


class DeployedFleet:
    """Clients come through a worker's proxy, the first one's unless `url` says else: the chart's Service does not have
    the head's.
    """

    def __init__(self, nodes: RayNodes, url: str | None = None) -> None:
        self._nodes = nodes
        self.url = url or f"http://127.0.0.1:{nodes.worker_port(0)}"

    @property
    def output(self) -> str:
        return str(self.statuses())

    def start(self, file: Path, *, units: int) -> None:
        """Returns when as many units serve."""

        async def started() -> None:
            await self.deploy(file)
            await self.until_reachable()
            await until_well(self, units=units)

        asyncio.run(started())

    async def deploy(self, file: Path) -> None:
        """Returns when Serve has taken it, not when it is done. Serve's agent comes later than Ray's head."""
        await self.deploy_config(await self.muxfleet("render", str(file)), file.with_suffix(".serve.yaml"))

    async def deploy_config(self, text: str, file: Path) -> None:
        """A Serve config that is rendered already; the file is for it."""
        self._rendered = file
        self._rendered.write_text(text)
        await self.deploy_again()

    async def deploy_again(self) -> None:
        """The same as before."""
        serve = [str(_BIN / "serve"), "deploy", "--address", self._nodes.dashboard_url, str(self._rendered)]
        until_s = time.monotonic() + _DEADLINE_S
        while (failure := (await self._run(*serve))[1]) is not None:
            assert time.monotonic() < until_s, failure
            await asyncio.sleep(1.0)

    async def muxfleet(self, *arguments: str, patience_s: float = _DEADLINE_S) -> str:
        """Its output; it must end well."""
        output, failure = await self._run(str(_BIN / "muxfleet"), *arguments, patience_s=patience_s)
        assert failure is None, failure
        return output

    async def _run(self, *command: str, patience_s: float = _DEADLINE_S) -> tuple[str, str | None]:
        """Standard output, and all that was said where it failed."""
        pipe = asyncio.subprocess.PIPE
        running = await asyncio.create_subprocess_exec(*command, env=self._nodes.environment, stdout=pipe, stderr=pipe)
        output, errors = await asyncio.wait_for(running.communicate(), patience_s)
        return output.decode(), (output + errors).decode() if running.returncode else None

    async def end_serves_controller(self) -> None:
        """For good, as Ray ends an actor that fails while it starts again: `serve status` then knows nothing."""
        _, failure = await self._run(sys.executable, "-c", _END_SERVES_CONTROLLER)
        assert failure is None, failure
        until_s = time.monotonic() + _DEADLINE_S
        while statuses := await asyncio.to_thread(self.statuses):
            assert time.monotonic() < until_s, statuses
            await asyncio.sleep(0.5)

    def statuses(self) -> dict[str, str]:
        """Of each application; why not, while Serve does not tell."""
        command = [str(_BIN / "serve"), "status", "--address", self._nodes.dashboard_url]
        done = subprocess.run(command, env=self._nodes.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"serve status": done.stderr}
        return {name: app["status"] for name, app in yaml.safe_load(done.stdout)["applications"].items()}

    async def until_running(self) -> None:
        until_s = time.monotonic() + _DEADLINE_S
        while True:
            statuses = await asyncio.to_thread(self.statuses)
            if statuses and set(statuses.values()) == {"RUNNING"}:
                return
            if not statuses:  # as KubeRay does: Serve's controller is gone for good
                await self.deploy_again()
            assert time.monotonic() < until_s, f"{statuses}\n{self._nodes.head_says()}"
            await asyncio.sleep(1.0)

    async def until_reachable(self) -> None:
        until_s = time.monotonic() + _DEADLINE_S
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            while time.monotonic() < until_s:
                try:
                    if (await http.get(f"{self.url}/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # no proxy yet
                await asyncio.sleep(0.5)
        raise AssertionError(f"no gateway after {_DEADLINE_S:g} s: {self.statuses()}")

    def pids(self, title: str) -> set[int]:
        return {p.pid for p in self.found(title)}

    def found(self, title: str) -> list[psutil.Process]:
        return [p for p in self._nodes.processes() if title in command_line(p)]
