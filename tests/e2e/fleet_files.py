"""Fleet files of the end-to-end tests."""

import json
import socket
from pathlib import Path

from deploy.local.demo_fleet import write_demo
from muxfleet.own_packages import PACKAGES


def free_port() -> int:
    """Outside the range that Ray's workers take."""
    for port in range(20100, 20200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def fleet_file(folder: Path, *, proxy: str) -> Path:
    """The demo's fleet on a free port, patient enough for a restart on a busy machine. Beside it lie files of the
    user's that bear the names of our packages, and of a module that all Python programs use: the fleet takes none.
    """
    for name in (*PACKAGES, "queue"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the user was imported')\n")
    file = write_demo(folder)
    text = file.read_text()
    assert "  port: 8000\n" in text
    file.write_text(text.replace("  port: 8000\n", f"  port: {free_port()}\n  proxy: {proxy}\n  hold_s: 180\n"))
    return file


def trained_fleet_file(folder: Path, checkpoint: Path, *, gateway: dict[str, object], **model: object) -> Path:
    """One model with trained weights, `smollm2`, on a free port; `gateway` and `model` are added to their sections."""
    smollm2 = {"id": "smollm2", "source": str(checkpoint), "slo": {"ttft_s": 10.0, "tbt_s": 2.0}, **model}
    fleet = {
        "name": "trained",
        "models": [smollm2],
        "pools": [{"name": "laptop", "device": "cpu", "kv_memory": "256MiB"}],
        "gateway": {"port": free_port(), "proxy": "python", **gateway},
    }
    file = folder / "trained.json"
    file.write_text(json.dumps(fleet))
    return file
