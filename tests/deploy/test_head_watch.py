"""A command in somebody's Ray cluster, whose head goes: in a process of its own, for it ends."""

import subprocess
import sys

PROGRAM = """
import socket, sys, threading, time
from deploy.local.head_watch import ending_without_head
def head(port=0):
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    return server, server.getsockname()[1]
server, port = head()
print(port, flush=True)
with ending_without_head(f"127.0.0.1:{port}", patience_s=1.5, look_every_s=0.1):
    time.sleep(0.5)
    server.close()
    time.sleep(0.5)
    if sys.argv[1] == "back":
        server, port = head(port)
        time.sleep(2.5)
        sys.exit(7)
    time.sleep(60)
"""


def run(then: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, then], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_head__gone_for_good__ends_the_command_with_one_line() -> None:
    code, port, err = run("gone")

    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"muxfleet: no Ray cluster answers at 127.0.0.1:{port}: its head was there, and has not")


def test_head__back_in_time__is_waited_for() -> None:
    code, _, err = run("back")

    assert (code, err) == (7, "")
