"""Two fleets of one machine share no port."""

import pytest
from ray.serve._private import constants

from deploy.local.ray_environment import ray_environment


@pytest.mark.parametrize(
    "variable",
    ["RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"],
)
def test_environment__behind_haproxy__every_fixed_port_of_serve_is_one_that_was_free(variable: str) -> None:
    """The fallback proxy would listen beside another fleet's on one port: requests went to that one's models."""
    found = ray_environment(
        proxy="haproxy", auth_token="t", free_ports=(50001, 50002, 50003), haproxy=None, is_verbose=False
    )

    assert found[variable] in {"50001", "50002", "50003"}
    assert hasattr(constants, variable), "Serve has another name for it"
