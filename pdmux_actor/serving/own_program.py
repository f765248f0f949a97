"""Processes of ours: they find our packages where the one that starts them did, and end with it."""

import asyncio
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Where this package and those it imports lie. The program finds them there and nowhere else: neither the folder that a
# worker happens to run in nor another distribution's package of the same name comes first.
_PACKAGES_FOLDER = Path(__file__).resolve().parents[2]
_COLLECT_S = 30.0
_RUN_PROGRAM = (
    "import runpy, sys; folder, program = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, folder); "
    "runpy.run_module(program, run_name='__main__', alter_sys=True)"
)


def own_program(program: str) -> tuple[str, ...]:
    """The beginning of a command line that runs the module `program`; its arguments follow."""
    return (sys.executable, "-P", "-c", _RUN_PROGRAM, str(_PACKAGES_FOLDER), program)


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A process of ours and this side of the socket pair that it was started with."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def kill(self) -> None:
        """Ends it at once. What is left of it is collected beside the event loop."""
        self.writer.close()
        self.process.kill()
        asyncio.get_running_loop().run_in_executor(None, self.process.wait, _COLLECT_S)


async def start_own_program(program: str, *arguments: str) -> OwnProcess:
    """Starts the module `program`; its first argument is the number of its socket.

    Raises OSError: the machine has no room for another process.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # Not asyncio's: a task that is cancelled while asyncio starts a process never ends (Python 3.11).
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns in milliseconds
            [*own_program(program), str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    ours.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return OwnProcess(process, reader, writer)
