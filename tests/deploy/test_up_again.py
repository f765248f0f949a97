"""`muxfleet up --restart` after its cluster was lost."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.commands import up
from deploy.environment import export_environment
from deploy.errors import FleetLost
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint


class Ran(BaseException):
    """Stands where another program would take this one's place."""


def test_up_again__after_its_cluster_was_lost__has_the_environment_it_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ports and its token were of the cluster that is lost: another program may listen there by now."""
    environments = []

    @contextmanager
    def lost(*_: object, **__: object) -> Iterator[None]:
        export_environment({"RAY_SERVE_HAPROXY_METRICS_PORT": "20001", "RAY_AUTH_TOKEN": "old"})
        yield
        raise FleetLost(part="Ray's GCS", pid=1, meaning="all ends")

    def run(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        environments.append(environment)
        raise Ran

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the user's")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_METRICS_PORT", "")
    monkeypatch.delenv("RAY_SERVE_HAPROXY_METRICS_PORT")
    monkeypatch.setattr(up, "fleet_on_screen", lost)
    monkeypatch.setattr(up, "serve_until_interrupted", lambda *_: None)
    monkeypatch.setattr(os, "execve", run)
    write_random_checkpoint(tmp_path / "m", DEMO_SHAPES["demo-llama"], 1)
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: m, source: ./m}]\npools: [{name: p, device: cpu, kv_memory: 64MiB}]\n")

    with pytest.raises(Ran):
        main(["up", str(file), "--restart"])

    (environment,) = environments
    assert environment["RAY_AUTH_TOKEN"] == "the user's"
    assert "RAY_SERVE_HAPROXY_METRICS_PORT" not in environment
