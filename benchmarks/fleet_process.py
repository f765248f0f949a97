"""A fleet for a benchmark: `muxfleet up` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READY_S = 240
_STOP_S = 90


@contextmanager
def running_fleet(fleet_file: Path, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Yields the URL. RuntimeError with the fleet's own words if it does not come up. SIGTERM ends the fleet, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "muxfleet.command_line", "up", str(fleet_file), "--wait", str(_READY_S)],
        cwd=Path(__file__).parents[1],
        env=clean | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    reader: threading.Thread | None = None
    try:
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"serving at (http://\S+)", line):
                reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
                reader.start()
                yield found.group(1)
                return
        raise RuntimeError(f"the fleet does not start:\n{''.join(lines)}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if reader is not None:
            reader.join(10)
        signal.signal(signal.SIGTERM, before)
