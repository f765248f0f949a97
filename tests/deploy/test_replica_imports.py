"""What a replica's process imports: it holds that in memory as long as it lives, and reads it before it serves."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs import ForkedPrograms, forked_programs

from deploy.fleet_file.settings import FleetFile
from deploy.serve.render import serve_config

ROOT = Path(__file__).parents[2]
# For any replica: only who trains, plots or reads tables needs them, or who runs a model.
_HEAVY = {"matplotlib", "pandas", "pyarrow", "scipy", "torch", "transformers", "xgrammar"}
_OF_PLANNING = {"deploy.fleet_file.settings", "placement.solvers", "placement.packing"}
_OF_TEXT = {"huggingface_hub", "jinja2", "tokenizers"}


@pytest.fixture(scope="module")
def worker() -> Iterator[ForkedPrograms]:
    """Processes as Ray's workers begin: with their setup hook, then Ray."""
    with forked_programs("from muxfleet.lean_serve import leave_pandas_out; leave_pandas_out()\nimport ray") as origin:
        yield origin


def _imported(worker: ForkedPrograms, program: str) -> set[str]:
    """The modules of a worker after `program`."""
    told = "import sys; print('\\n'.join(name for name, module in sys.modules.items() if module is not None))"
    return set(worker.run(f"{program}\n{told}").split())


def test_gateway__as_a_replica_imports_it__holds_no_tokenizer_no_planner_and_no_tables(worker: ForkedPrograms) -> None:
    imported = _imported(worker, "import muxfleet.gateway_replica, deploy.serve.gateway_settings, deploy.log_lines")

    assert "router.http.app" in imported
    assert not imported & (_HEAVY | _OF_PLANNING | _OF_TEXT)


@pytest.mark.parametrize("replica", ["unit_replica", "control_replica"])
def test_replica__as_ray_imports_it__leaves_out_what_it_does_not_run(worker: ForkedPrograms, replica: str) -> None:
    imported = _imported(worker, f"import muxfleet.{replica}")

    assert "ray.serve" in imported
    assert not imported & _HEAVY


@pytest.mark.parametrize("name", ["units-p", "control", "gateway"])
def test_application__as_a_task_of_rays_builds_it__imports_nothing_of_what_replicas_run(
    worker: ForkedPrograms, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a fleet waits for such a task, in a process of its own, before a replica begins."""
    monkeypatch.setenv("MUXFLEET_ALLOW_OPEN_RAY", "1")
    fleet = FleetFile.model_validate({"models": [{"id": "a", "source": "x"}], "pools": [{"name": "p"}]})
    (config,) = (app for app in serve_config(fleet)["applications"] if app["name"] == name)
    program = (
        "from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call\n"
        "from ray.serve._private.build_app import build_app\n"
        "from ray._common.utils import import_attr\n"
        f"build_app(call(import_attr({config['import_path']!r}), {config['args']!r}), name={name!r})"
    )

    imported = _imported(worker, program)

    replicas = {"deploy.control", "deploy.serve.unit_replica", "router.http", "router.serving"}
    assert "muxfleet.serve_applications" in imported
    assert not imported & (_HEAVY | _OF_PLANNING | replicas)


def test_planner__as_its_process_begins__reads_no_fleet_file(worker: ForkedPrograms) -> None:
    """The first token of a fleet waits for its first plan, and that for this process."""
    imported = _imported(worker, "import deploy.planning.planner_program")

    assert not imported & (_HEAVY | {"deploy.fleet_file.section", "deploy.fleet_file.setting_types"})


def test_pandas__imported_after_serve__is_there(worker: ForkedPrograms) -> None:
    assert "pandas" in _imported(worker, "from ray import serve\nimport pandas")


def test_gateway_application__is_carried_by_values_that_bring_no_fleet_file(worker: ForkedPrograms) -> None:
    """What is bound is unpickled in the replica: a function of a heavy module would bring that."""
    program = (
        "import pickle, sys\n"
        "from deploy.serve.gateway_application import batches_here, gateway_limits\n"
        "from deploy.serve.app_args import GatewayArgs\n"
        "from deploy.serve.gateway_settings import KeysOfFile\n"
        "args = GatewayArgs(max_body_bytes=1, max_queued_requests=1, hold_s=1.0)\n"
        "print(pickle.dumps([batches_here(args), gateway_limits(args), KeysOfFile(path='k')]).hex())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    read = f"import pickle; pickle.loads(bytes.fromhex('{done.stdout.strip()}'))"
    assert not _imported(worker, f"import muxfleet.gateway_replica\n{read}") & (_HEAVY | _OF_PLANNING)
