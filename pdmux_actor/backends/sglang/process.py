"""The engine process that hosts SGLang: `python -m pdmux_actor.backends.sglang.process FD SETTINGS`.

It speaks the commands and notices of our own engine process. SGLang's tokenizer side lives here, its scheduler and
detokenizer are children of this process and end with it.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from pdmux_actor.backends.sglang.host import SglangHost
from pdmux_actor.backends.sglang.options import SGLANG_MEMORY_SHARE
from pdmux_actor.serving.commands import Command, EngineSettings, Shutdown, Started
from pdmux_actor.serving.engine_log import log_to_actor
from pdmux_actor.serving.frames import FrameReader
from pdmux_actor.serving.host_budget import host_memory_budget
from pdmux_actor.serving.notice_sender import NoticeSender
from pdmux_actor.serving.parent_death import die_with_parent
from profiler.devices import device_named, laptop_cpu
from profiler.guard_file import read_guard_grid
from profiler.specs import DeviceSpec

_READ_BYTES = 256 * 1024
_FLUSH_TIMEOUT_S = 5.0
_DEEPEST_BYTES = 64  # a socket's path has 107 at most on Linux
_SHALLOW = ("/tmp", "/var/tmp", "/dev/shm")


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the actor decides
    log_to_actor()
    connection = socket.socket(fileno=int(arguments[0]))
    settings = msgspec.json.decode(arguments[1], type=EngineSettings)
    keep_socket_paths_short()
    with tempfile.TemporaryDirectory(prefix="muxfleet-sglang-") as folder:
        asyncio.run(_serve(connection, settings, Path(folder)))
    os._exit(0)  # SGLang leaves threads behind that would hold up the exit


def keep_socket_paths_short() -> None:
    """Has temporary files of this process, among them the sockets of SGLang's processes and of its plugin, in a folder
    of the system's where TMPDIR is too deep for a socket's path. SGLang's children are told their paths.
    """
    if len(os.fsencode(tempfile.gettempdir())) > _DEEPEST_BYTES:
        usable = (place for place in _SHALLOW if os.access(place, os.W_OK | os.X_OK))
        vars(tempfile)["tempdir"] = next(usable, None)  # as its documentation says to set it


async def _serve(connection: socket.socket, settings: EngineSettings, folder: Path) -> None:
    sender = NoticeSender(connection)
    device = device_of(settings)
    if settings.guard is not None:  # before SGLang starts: its scheduler would fail on it in words of its own
        read_guard_grid(Path(settings.guard), device)
    host_bytes = host_memory_budget(settings, device) if settings.sglang.sleep else 0
    host = SglangHost(settings, device, sender, folder, host_bytes=host_bytes)
    await host.listen()
    sender.send(
        Started(
            device=device.name,
            memory_bytes=settings.device_memory_bytes or _device_bytes(settings, device) * settings.num_gpus,
            block_bytes=settings.block_bytes,
            total_blocks=(settings.kv_pool_bytes or 0) // settings.block_bytes,
            sizes_pool=settings.kv_pool_bytes is None,
            max_models=1,
            constrains=settings.sglang.args.get("grammar_backend") != "none",
            host_memory_bytes=host_bytes,
        )
    )
    commands: FrameReader[Command] = FrameReader(Command)
    loop = asyncio.get_running_loop()
    try:
        while data := await _receive(loop, connection):
            for command in commands.feed(data):
                if isinstance(command, Shutdown):
                    return
                host.take(command)
    finally:
        await host.close()
        sender.flush(_FLUSH_TIMEOUT_S)


async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    """The socket stays blocking for the sender's thread, so it is read when it is readable."""
    readable = loop.create_future()
    loop.add_reader(connection.fileno(), lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection.fileno())
    try:
        return connection.recv(_READ_BYTES)
    except ConnectionError:
        return b""  # the same as end-of-file: the actor is gone


def _device_bytes(settings: EngineSettings, device: DeviceSpec) -> int:
    """Of one GPU; where weights and pool are to fill it, what SGLang lets them."""
    return int(SGLANG_MEMORY_SHARE * device.memory_bytes) if settings.kv_pool_bytes is None else device.memory_bytes


def device_of(settings: EngineSettings) -> DeviceSpec:
    if settings.device_type is not None:
        return device_named(settings.device_type)
    return laptop_cpu(
        num_cores=settings.num_cores or psutil.cpu_count() or 1, memory_bytes=psutil.virtual_memory().total
    )


if __name__ == "__main__":
    main(sys.argv[1:])
