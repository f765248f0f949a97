"""What a contention guard learns inside SGLang outlives the engine: the engine process asks, the plugin writes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from model_shapes import LLAMA_3_8B

from pdmux_actor.backends.sglang.dispatch_state import PluginDispatch
from pdmux_actor.backends.sglang.hooks import Reporter
from pdmux_actor.backends.sglang.host import SglangHost
from pdmux_actor.backends.sglang.link import PluginHello, SchedulerLink
from pdmux_actor.backends.sglang.plugin_config import PluginConfig
from pdmux_actor.backends.sglang.plugin_line import PluginLine
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.notice_sender import NoticeSender
from profiler.contention import GuardCell
from profiler.gpus.h200 import DEVICE as H200

CELL = GuardCell.of(20, [], [2000] * 16)


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[PluginLine]:
    line = PluginLine(tmp_path / "plugin.sock", lambda load: None)
    await line.listen()
    yield line
    await line.close()


def dispatch_state_of(line: PluginLine, guard: Path) -> PluginDispatch:
    config = PluginConfig(
        socket=str(line.path),
        multiplexes=True,
        model="m",
        spec=LLAMA_3_8B,
        device=H200,
        num_gpus=1,
        partitions=((112, 20), (16, 116)),
        policy="muxwise",
        scheduler=SchedulerSettings(),
        quota_tokens=16384,
        guard=str(guard),
    )
    return PluginDispatch(_idle_scheduler(), config)


def _idle_scheduler() -> SimpleNamespace:
    return SimpleNamespace(
        running_batch=None,
        waiting_queue=[],
        forward_ct=0,
        max_total_num_tokens=16384,
        tree_cache=SimpleNamespace(evictable_size=lambda: 0),
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 16384),
    )


async def asked_to_keep(line: PluginLine, seat: PluginDispatch) -> None:
    """The scheduler's loop turns until the engine process has its answer."""
    line.expect_hello()
    link = SchedulerLink(str(line.path))
    try:
        link.send(PluginHello(missing=(), groups=(), total_tokens=16384, context_tokens=4096))
        await line.hello()
        reporter = Reporter(link, seat, _idle_scheduler())
        asking = asyncio.create_task(line.keep_guard())
        async with asyncio.timeout(30):
            while not asking.done():
                reporter.talk()
                await asyncio.sleep(0.01)  # the loop's turn: SGLang asks again at every iteration
        await asking
    finally:
        link.close()


async def learned_and_kept(line: PluginLine, file: Path) -> None:
    seat = dispatch_state_of(line, file)
    for _ in range(10):
        seat.dispatch.predictor.guard.observe(CELL, 1.7)
    await asked_to_keep(line, seat)


async def test_guard__engine_ends__next_one_begins_with_what_it_learned(line: PluginLine, tmp_path: Path) -> None:
    file = tmp_path / "guard.json"

    await learned_and_kept(line, file)

    assert dispatch_state_of(line, file).dispatch.predictor.guard.slowdown(CELL) == 1.7


async def test_guard__nothing_learned__is_answered_and_no_file_is_written(line: PluginLine, tmp_path: Path) -> None:
    file = tmp_path / "guard.json"

    await asked_to_keep(line, dispatch_state_of(line, file))

    assert not file.exists()


async def test_guard__learned_on_another_device__is_not_used(line: PluginLine, tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    await learned_and_kept(line, file)
    of_another = json.loads(file.read_text()) | {"num_sms": H200.num_sms - 2}
    file.write_text(json.dumps(of_another))

    assert dispatch_state_of(line, file).dispatch.predictor.guard.slowdown(CELL) != 1.7


async def test_engine__model_leaves_while_the_process_ends__is_shut_down_once(tmp_path: Path) -> None:
    """Both wait for a plugin that says nothing."""
    shut_down: list[str] = []
    settings = EngineSettings(kind="sglang_cpu", kv_pool_bytes=1 << 20, guard=str(tmp_path / "guard.json"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        host = SglangHost(settings, H200, NoticeSender(ours), tmp_path, host_bytes=0)
        host._engine = SimpleNamespace(shutdown=lambda: shut_down.append("engine"))
        await host.listen()
        host._line.expect_hello()
        link = SchedulerLink(str(host._line.path))
        link.send(PluginHello(missing=(), groups=(), total_tokens=16384, context_tokens=4096))
        await host._line.hello()

        await asyncio.gather(host._stop_engine(), host._stop_engine())

        link.close()
        await host.close()
    assert shut_down == ["engine"]


async def test_keep_guard__no_plugin_on_the_line__returns(line: PluginLine) -> None:
    async with asyncio.timeout(30):
        await line.keep_guard()
