"""A gateway, its text processes and a unit, served in a process of their own, which watches its event loop.

    python adversarial_server.py FOLDER

Writes its URL and, when it is told to end by end-of-file, how long the longest callback kept the loop: wall, CPU, and
as a multiple of what reading the largest body takes at that time on that machine.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

import msgspec
import uvicorn
from fake_unit import FakeUnit, fleet_view, write_byte_tokenizer

from pdmux_actor.models.demo_tokenizer import CHAT_TEMPLATE, build_demo_tokenizer
from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + CHAT_TEMPLATE
MODELS = ("merged", "bytes", "loops", "broken")
CONTEXT_TOKENS = 131_072
MAX_BODY_BYTES = 8 * 1024 * 1024
_WORTH_COMPARING_S = 0.03  # of CPU


def reading_s(body: bytes = b"[" + b"1," * (MAX_BODY_BYTES // 2 - 1) + b"1]") -> float:
    """Returns the CPU that reading a full body of numbers takes: a yardstick, as slow as the machine is now."""
    began_s = time.thread_time()
    msgspec.json.decode(body)
    return time.thread_time() - began_s


class WatchedHandle:
    """Times every callback of the loop; in place of `asyncio.Handle._run`."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self.worst_cpu_s = 0.0
        self.worst_readings = 0.0
        self.worst_name = ""
        self._run = asyncio.Handle._run

    def install(self) -> None:
        watch = self

        def run(handle: asyncio.Handle) -> None:
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            watch._run(handle)
            watch.worst_s = max(watch.worst_s, time.perf_counter() - began_s)
            cpu_s = time.thread_time() - began_cpu_s
            if cpu_s > watch.worst_cpu_s:
                watch.worst_cpu_s, watch.worst_name = cpu_s, repr(handle)[:300]
                if cpu_s > _WORTH_COMPARING_S:
                    watch.worst_readings = max(watch.worst_readings, cpu_s / reading_s())

        asyncio.Handle._run = run  # type: ignore[method-assign]


def write_models(folder: Path) -> None:
    write_byte_tokenizer(folder / "bytes")
    write_byte_tokenizer(folder / "loops", chat_template=LOOPS)
    (folder / "merged").mkdir(parents=True)
    build_demo_tokenizer(700).save(str(folder / "merged" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE}
    (folder / "merged" / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "broken").mkdir()
    (folder / "broken" / "tokenizer.json").write_text("{}")


def view(unit: FakeUnit, folder: Path) -> FleetView:
    shown = fleet_view(unit, source=folder, models=MODELS)
    cards = tuple(
        ModelCard(model=c.model, source=str(folder / c.model), revision=None, slo=c.slo, created_s=1)
        for c in shown.models
    )
    return FleetView(models=cards, units=shown.units, stream_token=shown.stream_token)


async def main(folder: Path) -> None:
    write_models(folder)
    gateway = Gateway(GatewayLimits(max_body_bytes=MAX_BODY_BYTES, template_timeout_s=1.0, hold_s=60.0))
    config = uvicorn.Config(create_app(gateway), host="127.0.0.1", port=0, log_level="critical", loop="asyncio")
    server = uvicorn.Server(config)
    async with FakeUnit(models=MODELS, max_model_len=CONTEXT_TOKENS) as unit:
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        gateway.update_view(view(unit, folder))
        for name in ("merged", "bytes", "loops"):
            await gateway._tokenizers.of(gateway.card(name))
        watch = WatchedHandle()
        watch.install()
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving, 5)
    figures = {
        "worst_s": watch.worst_s,
        "worst_cpu_s": watch.worst_cpu_s,
        "worst_readings": watch.worst_readings,
        "worst_callback": watch.worst_name,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
