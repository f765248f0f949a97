"""Ray and Serve as `muxfleet up` starts them, with nothing of ours in it: what a fleet's costs are measured against.

`replicas` are deployments that do nothing, since each replica costs Ray and Serve something, whatever is in it. Prints
`serving` when it is up, and ends on SIGINT. To be called in a process of its own.
"""

import math
import os
import secrets
import tempfile
import time
from typing import Any

from deploy.local.free_ports import free_ports
from deploy.local.haproxy import program_path
from deploy.local.ray_environment import ray_environment

_SPARE_CPUS = 64


def main(port: int, proxy: str, replicas: int) -> None:
    os.environ.update(
        ray_environment(
            proxy=proxy,
            auth_token=secrets.token_hex(16),
            free_ports=free_ports(3),
            haproxy=program_path(),
            is_verbose=False,
        )
    )
    import ray  # reads its environment when it is imported
    from ray import serve

    class Nothing:
        async def check_health(self) -> None:
            pass

    with tempfile.TemporaryDirectory(prefix="muxfleet-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=math.ceil(replicas) + _SPARE_CPUS,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _temp_dir=folder,
        )
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": "127.0.0.1", "port": port},
            logging_config={"log_level": "INFO", "enable_access_log": False},
        )
        for number in range(replicas):
            options: dict[str, Any] = {"name": f"nothing-{number}", "health_check_period_s": 1.0}
            bound = serve.deployment(**options)(Nothing).options(ray_actor_options={"num_cpus": 0.1}).bind()
            serve.run(bound, name=f"app-{number}", route_prefix=None if number else "/")
        print("serving", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            ray.shutdown()
