"""Runs in processes of their own find what runs one after the other find."""

import json
import os
import time
from pathlib import Path

import pytest
from small_experiment import SMALL
from typer.testing import CliRunner

from deploy.cli import build_app
from deploy.simulation.runs import sweep_rates
from deploy.simulation.workers import Workers

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """
name: one
models:
  - id: small
    source: {source}
    max_model_len: 8192
    slo: {{ttft_s: 1.0, tbt_s: 0.05}}
    demand: {{rate_per_s: 4.0, prompt_tokens: 7000, output_tokens: 20}}
pools:
  - {{name: h, device: simulated, gpu_type: H100, gpus_per_node: 1, mesh_gpus: 1, kv_memory: 8GiB}}
engine: {{block_bytes: 64KiB}}
"""


def command(tmp_path: Path, name: str, *options: object) -> dict[str, object]:
    """What it wrote as JSON, without what tells one run from another: the command and times."""
    out = tmp_path / f"{name}.json"
    done = CliRunner().invoke(build_app(), [*(str(o) for o in options), "--json", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    del found["command"]
    for deployment in found.get("deployments", {}).values():
        deployment.get("simulation", {}).pop("wall_s", None)
    found.pop("wall_s", None)
    return found


def fleet_file(tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(FLEET.format(source=EXAMPLES / "models" / "llama-3.1-8b"))
    return path


POLICIES = ("--policy", "mux", "--policy", "chunked_prefill", "--policy", "prefill_first")


@pytest.mark.parametrize(
    "options",
    [POLICIES, (*POLICIES, "--sweep", "rate=0.5,12"), ("--sweep", "rate=0.5,2,12")],
    ids=["policies", "sweeps of policies", "one sweep"],
)
def test_simulate__in_three_processes__writes_what_one_writes(options, tmp_path):
    simulate = ("simulate", fleet_file(tmp_path), "--duration", 2, *options)
    one, three = (command(tmp_path, f"jobs{n}", *simulate, "--jobs", n) for n in (1, 3))
    assert one == three
    assert one["deployments"]
    sweeps = [found["points"] for found in one["deployments"].values() if "points" in found]
    assert all(len(points) > 3 for points in sweeps), "no rate was too high, so none was bisected"
    assert bool(sweeps) == ("--sweep" in options)


def test_compare__in_two_processes__writes_what_one_writes(tmp_path):
    experiment = tmp_path / "small.yaml"
    experiment.write_text(json.dumps(SMALL))
    compare = ("compare", experiment, "--quick")
    one, two = (command(tmp_path, f"jobs{n}", *compare, "--jobs", n) for n in (1, 2))
    assert one == two
    assert len(one["rows"]) == 2


def test_workers__several_jobs__tasks_run_in_other_processes_and_tell_on_the_way():
    heard: list[int] = []

    def work(number, tell):
        tell(number)
        return number, os.getpid()

    with Workers(2, heard.append) as workers:
        tasks = [workers.submit(lambda tell, n=n: work(n, tell)) for n in range(5)]
        results = [task.result() for task in tasks]
    assert [number for number, _ in results] == list(range(5))
    assert os.getpid() not in {pid for _, pid in results}
    assert sorted(heard) == list(range(5))


def test_workers__task_fails_in_its_process__fails_here_with_its_own_error():
    def fail(tell):
        raise ZeroDivisionError("of its own")

    with Workers(2, print) as workers, pytest.raises(ZeroDivisionError, match="of its own"):
        workers.submit(fail).result()


def test_workers__left_while_tasks_run__stops_them():
    started_s = time.monotonic()
    with Workers(2, print) as workers:
        tasks = [workers.submit(lambda tell: time.sleep(120)) for _ in range(3)]
    assert not any(task.process is not None and task.process.is_alive() for task in tasks)
    assert time.monotonic() - started_s < 60


def test_sweep__asked_ahead__first_is_what_it_runs_next_and_none_is_known_already():
    ran: list[float] = []
    asked: list[list[float]] = []

    class Outcome:
        def __init__(self, rate):
            self.rate = rate

        def total(self):
            return type("Total", (), {"requests": 1, "in_time": int(self.rate < 6.5), "attained": int(self.rate < 8.5)})

    def run_at(rate):
        assert asked[-1][0] == rate
        assert not set(asked[-1]) & set(ran)
        ran.append(rate)
        return Outcome(rate)

    found = sweep_rates([4, 2, 16, 8, 32], run_at, ahead=asked.append)
    assert (found.goodput_per_s, found.goodput_requests_per_s) == (8.0, 6.25)
    assert asked[0] == [2, 4, 8, 16, 32]
