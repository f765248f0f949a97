"""What Serve keeps of an application once a task of Ray's has built it."""

from pathlib import Path

import pytest
from ray._common.utils import import_attr
from ray.serve._private.build_app import build_app

from deploy.fleet_file.settings import FleetFile
from deploy.serve.app_args import GATEWAY_APP, ControlArgs, GatewayArgs, UnitShape
from deploy.serve.gateway_application import batches_here
from deploy.serve.render import serve_config
from muxfleet.serve_applications import build_control, build_gateway, build_units

INLINE_BYTES = 100 * 1024  # Ray's max_direct_call_object_size
BUILDERS = {"build_units": (build_units, UnitShape), "build_control": (build_control, ControlArgs)} | {
    "build_gateway": (build_gateway, GatewayArgs)
}


def test_application__as_ray_returns_it__goes_to_serve_and_stays_in_no_nodes_object_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node whose object store holds something is one that is used, for Ray's autoscaler: for as long as the fleet
    runs, since Serve never lets go of what was built. The units of a pool with labels are built on a node of that pool.
    """
    monkeypatch.setenv("MUXFLEET_ALLOW_OPEN_RAY", "1")
    pool = {"name": "p", "node_labels": {"of": "p"}}
    fleet = FleetFile.model_validate({"models": [{"id": "a", "source": "x"}], "pools": [pool]})

    for application in serve_config(fleet)["applications"]:
        builder, shape = BUILDERS[application["import_path"].rpartition(":")[2]]
        built = build_app(builder(shape.model_validate(application["args"])), name=application["name"])
        (deployment,) = built.deployments
        assert isinstance(import_attr(deployment.func_or_class), type)  # none but its replicas imports it
        configs = (deployment._deployment_config, deployment._replica_config)
        assert sum(len(config.to_proto_bytes()) for config in configs) < INLINE_BYTES / 2


def test_batches__of_two_fleets_of_one_user__lie_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway goes on with every open batch that it finds, whatever models its lines name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    urls = []
    for name in ("a", "b"):
        fleet = FleetFile.model_validate({"name": name, "models": [{"id": "m", "source": "x"}]})
        (args,) = (a["args"] for a in serve_config(fleet)["applications"] if a["name"] == GATEWAY_APP)
        urls.append(batches_here(GatewayArgs.model_validate(args))().url)

    assert urls == [str(tmp_path / "muxfleet" / f"{name}.batches") for name in ("a", "b")]
