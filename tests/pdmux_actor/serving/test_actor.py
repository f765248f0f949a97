import os
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = Path(__file__).with_name("actor_scenario.py")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.mark.ray
@pytest.mark.timeout(280)
def test_actor__life_under_serve__registers_survives_kills_and_drains(checkpoint):
    """Steps that the scenario reports one by one; its last words say which one failed."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

    run = subprocess.run(
        [sys.executable, str(SCENARIO), str(checkpoint)],
        env=inherited | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert "done" in run.stdout.splitlines()
