import socket
from pathlib import Path

import pytest

from deploy.local import free_ports as module
from deploy.local.free_ports import free_ports


def test_free_ports__several__are_different_and_none_that_linux_gives_away():
    found = free_ports(50, but=20_000)

    assert len(set(found)) == 50
    assert 20_000 not in found
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given_away.exists():
        pytest.skip("no Linux")
    first, last = map(int, given_away.read_text().split())
    assert first < 32_768 or not any(first <= port <= last for port in found)


def test_free_ports__in_use_or_kept__are_passed_over(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "_PORTS", range(port, port + 1))

        with pytest.raises(OSError, match="fewer than 1 ports"):
            free_ports(1)
    (only,) = free_ports(1)
    assert only == port
    with pytest.raises(OSError, match="fewer than 1 ports"):
        free_ports(1, but=port)
