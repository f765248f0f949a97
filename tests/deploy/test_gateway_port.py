"""The gateway's port of a fleet that starts on this machine."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.errors import PortTaken
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.local.gateway_port import gateway_port

TEXT = "name: f\nmodels: [{id: m, source: org/m}]\npools: [{device: simulated, gpu_type: A40}]\ngateway: {port: %d}\n"


@pytest.fixture
def port() -> int:
    """One that is free, as are the next ones, most likely."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


def fleet_at(port: int) -> FleetFile:
    return parse_fleet_file(TEXT % port, name="f.yaml", base=Path())


def test_gateway_port__two_fleets_that_start_at_once__have_ports_of_their_own(port: int) -> None:
    """Neither listens yet: Serve does when the fleet is nearly up."""
    told: list[str] = []
    with (
        gateway_port(fleet_at(port), asked=None, tell=told.append) as first,
        gateway_port(fleet_at(port), asked=None, tell=told.append) as second,
    ):
        assert first.gateway.port == port
        assert second.gateway.port > port
    assert told == [f"port {port} is in use by another process; taking {second.gateway.port}"]


def test_gateway_port__asked_for_and_taken_by_a_fleet_that_starts__is_refused(port: int) -> None:
    with (
        gateway_port(fleet_at(port), asked=None, tell=print),
        pytest.raises(PortTaken, match=str(port)),
        gateway_port(fleet_at(1), asked=port, tell=print),
    ):
        pass


def test_gateway_port__fleet_that_has_ended_or_was_killed__is_free_again(port: int) -> None:
    with gateway_port(fleet_at(port), asked=port, tell=print):
        pass
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from deploy.fleet_file.settings import parse_fleet_file\n"
        "from deploy.local.gateway_port import gateway_port\n"
        f"fleet = parse_fleet_file({TEXT % port!r}, name='f.yaml', base=Path())\n"
        f"gateway_port(fleet, asked={port}, tell=print).__enter__()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9

    with gateway_port(fleet_at(port), asked=port, tell=print) as fleet:
        assert fleet.gateway.port == port


def test_gateway_port__another_program_listens__the_next_one_is_taken(port: int) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        with gateway_port(fleet_at(port), asked=None, tell=lambda _: None) as fleet:
            assert fleet.gateway.port > port
