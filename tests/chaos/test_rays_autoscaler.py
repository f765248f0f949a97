"""A pool grows from one node to three and shrinks to one again, under load, and nobody but Ray's own autoscaler adds
and removes its nodes: by what units that wait ask for, and when nothing runs on them. Its provider of nodes, that of
Ray's own tests, starts raylets on this machine in the place of KubeRay's pods.
"""

from pathlib import Path

import pytest
from autoscaled_nodes import AUTOSCALER_ENVIRONMENT, AutoscaledNodes, autoscaling_config
from breathing_fleet import fleet_file, grows_and_shrinks
from ray_nodes import ray_nodes

RAY_PORTS = 20790
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def test_pool__follows_demand__rays_autoscaler_adds_its_nodes_and_removes_those_that_were_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = autoscaling_config(ports=RAY_PORTS, most_nodes=3)
    with ray_nodes(ports=RAY_PORTS, autoscaling=config, variables_of_head=AUTOSCALER_ENVIRONMENT) as cluster:
        grows_and_shrinks(fleet_file(tmp_path), cluster.environment, AutoscaledNodes(cluster), capsys)
