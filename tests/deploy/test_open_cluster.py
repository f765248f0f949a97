"""What `serve deploy` runs on a node of the cluster."""

import subprocess
import sys
from pathlib import Path

# Arguments are settings of the environment under which the applications are built one time more.
PROGRAM = """
from deploy.local.demo_fleet import write_demo
from deploy.errors import OpenCluster
from deploy.serve.render import serve_config
from deploy.fleet_file.settings import read_fleet_file
from muxfleet import serve_applications
from pathlib import Path
import os, sys
applications = serve_config(read_fleet_file(write_demo(Path(sys.argv[1]))))["applications"]
for setting in [None, *sys.argv[2:]]:
    if setting is not None:
        os.environ.update([setting.split("=")])
    for application in applications:
        build = getattr(serve_applications, application["import_path"].split(":")[1])
        try:
            build(build.__annotations__["args"].model_validate(application["args"]))
            print("built")
        except OpenCluster as error:
            print(error)
"""


def built(folder: Path, *then: str, **environment: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *then],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_applications__cluster_without_a_token__are_refused_with_the_remedy_and_built_by_leave(tmp_path: Path) -> None:
    lines = built(tmp_path, "MUXFLEET_ALLOW_OPEN_RAY=1", RAY_AUTH_MODE="disabled")

    assert len(lines) == 6
    assert all(
        line.startswith("this Ray cluster asks for no token") and "RAY_AUTH_MODE=token" in line for line in lines[:3]
    )
    assert lines[3:] == ["built"] * 3


def test_applications__token__are_built(tmp_path: Path) -> None:
    assert built(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 32) == ["built"] * 3
