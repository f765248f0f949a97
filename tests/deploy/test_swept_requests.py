"""Which requests come at each rate of a sweep, and what is said where they tell little."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.commands import simulate as simulate_module
from deploy.simulation.deployments import DeployedFleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.streams import RequestStream

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    demand = {"rate_per_s": 1.0, "prompt_tokens": 7000, "output_tokens": 10}
    source = str(EXAMPLES / "models" / "llama-3.1-8b")
    model = {"id": "m", "source": source, "max_model_len": 8192, "slo": {"ttft_s": 1.0, "tbt_s": 0.05}}
    pool = {"name": "p", "device": "simulated", "gpu_type": "H100", "gpus_per_node": 1, "kv_memory": "40GiB"}
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"name": "one", "models": [{**model, "demand": demand}], "pools": [pool]}))
    return file


def test_sweep__of_demand__every_rate_lasts_as_long(run: Run, fleet: Path, tmp_path: Path) -> None:
    """One GPU bears some 5 of these a second. Those of 1/s for 35 s, all within a second, were borne at 30/s."""
    found = tmp_path / "found.json"
    _, out, _ = run("simulate", fleet, "--duration", 35, "--sweep", "rate=1,15", "--json", found)
    sweep = json.loads(found.read_text())["deployments"]["mux"]
    requests = {point["rate_per_s"]: point["total"]["requests"] for point in sweep["points"]}

    assert out.startswith("35 s of demand of the fleet file at each rate\n")
    assert requests[1.0] == pytest.approx(35, rel=0.3)
    assert 1 <= sweep["goodput_requests_per_s"] < 10
    assert "at least" not in out
    assert "too soon" not in out


def test_sweep__rate_that_is_stopped_early__is_marked_wherever_its_figures_stand(
    run: Run, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attainment is that of the requests before the queue was long."""
    whole, found, page = simulate_module.run_fleet, tmp_path / "found.json", tmp_path / "page.html"

    def stopped(deployed: DeployedFleet, stream: RequestStream, *arguments: Any, **options: Any) -> FleetOutcome:
        return replace(whole(deployed, stream, *arguments, **options), gave_up=stream.rate_per_s > 20)

    monkeypatch.setattr(simulate_module, "run_fleet", stopped)
    _, out, _ = run("simulate", fleet, "--duration", 4, "--sweep", "rate=1,40", "--json", found, "--plot", tmp_path)
    run("report", page, found)
    points = json.loads(found.read_text())["deployments"]["mux"]["points"]

    assert (points[0]["stopped_early"], points[-1]["stopped_early"]) == (False, True)
    assert "40*" in out
    assert "* stopped once 30% of its requests had missed their targets: its figures are of those" in out
    assert "40, stopped early" in page.read_text()
    assert (tmp_path / "attainment.png").exists()


def test_sweep__requests_given__at_most_so_many_come(run: Run, fleet: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    run("simulate", fleet, "--requests", 30, "--sweep", "rate=0.5,0.8", "--json", found)
    points = json.loads(found.read_text())["deployments"]["mux"]["points"]
    assert [point["total"]["requests"] for point in points] == [30, 30]


def test_sweep__trace_that_is_over_at_once__goodput_is_said_to_stand_on_little(
    run: Run, fleet: Path, tmp_path: Path
) -> None:
    columns = {"arrival_s": [float(i) for i in range(40)], "input_tokens": [100] * 40, "output_tokens": [5] * 40}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    _, out, _ = run("simulate", fleet, "--trace", tmp_path / "t.parquet", "--sweep", "rate=1,40")

    assert "no rate was too high: the goodput is at least that; try higher ones" in out
    assert "40 requests come within 1.0 s at 40/s, which may be too soon for a queue to show: ask for more" in out


def test_sweep__more_requests_than_can_be_generated__is_said_before_it_begins(run: Run, fleet: Path) -> None:
    code, out, err = run("simulate", fleet, "--sweep", "rate=1,1e6")
    assert (code, out) == (2, "")
    assert err.startswith("muxfleet: --duration 120: that is 1.2e+08 requests, 20,000,000 at most")


def test_sweep__interrupted__rates_that_have_ended_are_kept(
    run: Run, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, begun = simulate_module.run_fleet, []

    def interrupted(*arguments: Any, **options: Any) -> FleetOutcome:
        begun.append(arguments)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(simulate_module, "run_fleet", interrupted)
    found = tmp_path / "found.json"
    code, out, err = run("simulate", fleet, "--duration", 4, "--sweep", "rate=2,4,8", "--json", found)
    sweep = json.loads(found.read_text())["deployments"]["mux"]

    assert (code, err) == (130, "")
    assert "mux, interrupted: goodput 4 requests/s" in out
    assert ([point["rate_per_s"] for point in sweep["points"]], sweep["interrupted"]) == ([2.0, 4.0], True)


def test_sweep__of_a_trace_without_times__they_come_at_each_rate(run: Run, fleet: Path, tmp_path: Path) -> None:
    lengths, found = tmp_path / "lengths.parquet", tmp_path / "found.json"
    columns = {"arrival_s": pa.nulls(40, pa.float64()), "input_tokens": [7000] * 40, "output_tokens": [10] * 40}
    pq.write_table(pa.table(columns), lengths)

    code, out, err = run("simulate", fleet, "--trace", lengths, "--sweep", "rate=1,30", "--json", found)

    assert (code, err) == (0, "")
    assert out.startswith("40 requests of lengths, ")
    assert 1 <= json.loads(found.read_text())["deployments"]["mux"]["goodput_requests_per_s"] < 30
