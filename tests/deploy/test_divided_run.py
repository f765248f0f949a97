"""A fleet simulated in parts, in processes of their own, finds what it finds as a whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import read_fleet_file
from deploy.reports.percents import PERCENTS
from deploy.simulation import divided_run
from deploy.simulation.deployments import DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.divided_run import run_fleet_divided
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream, demand_stream
from router.limits import GatewayLimits

FLEET = read_fleet_file(Path(__file__).parents[2] / "examples" / "simulated-32gpu.yaml")  # three parts
OPTIONS = RunOptions(limits=GatewayLimits(), gateways=2)


def deployed() -> DeployedFleet:
    return deploy_fleet(FLEET, Deployment(name="mux", policy="mux"))


def demand(duration_s: float) -> RequestStream:
    return demand_stream([expected_demand(m) for m in FLEET.models], duration_s=duration_s, seed=3)


def found(outcome: FleetOutcome) -> dict[str, object]:
    by_model = {
        model: (s.figures(outcome.duration_s).as_dict(), s.distributions(PERCENTS))
        for model, s in outcome.models.items()
    }
    total = outcome.total().figures(outcome.duration_s).as_dict()
    times = (outcome.duration_s, outcome.ended_s, outcome.events, outcome.steps, outcome.gave_up)
    return {"by_model": list(by_model.items()), "total": total, "times": times}


@pytest.fixture
def ways(monkeypatch) -> list[bool]:
    """Whether what parts found was taken, each time that there were some."""
    taken: list[bool] = []
    run_parts = divided_run._run_parts

    def noted(*given):
        taken.append(False)
        outcomes = run_parts(*given)
        taken[-1] = True
        return outcomes

    monkeypatch.setattr(divided_run, "_run_parts", noted)
    return taken


def as_whole_and_divided(stream: RequestStream) -> tuple[list[object], list[list[int]]]:
    """What a run as a whole and one in two processes found, and what each was told on the way: requests ended."""
    told: list[list[int]] = [[], []]
    whole = run_fleet(deployed(), stream, OPTIONS, on_progress=lambda ended, _: told[0].append(ended))
    parts = run_fleet_divided(deployed(), stream, OPTIONS, jobs=2, on_progress=lambda ended, _: told[1].append(ended))
    return [found(whole), found(parts)], told


def test_divided__nothing_waits__finds_and_tells_what_the_whole_does(ways):
    (whole, parts), told = as_whole_and_divided(demand(6.0))
    assert ways == [True]
    assert parts == whole
    assert told[0][-1] == told[1][-1] == demand(6.0).count
    assert len(told[1]) > len(told[0])  # each part tells its end


def test_divided__requests_have_to_wait__is_run_as_a_whole(ways):
    (whole, parts), _ = as_whole_and_divided(demand(20.0).at_rate(4000.0))
    assert ways == [False]
    assert parts == whole


@pytest.mark.parametrize("limit", ["window", "samples", "blocks that prompts share"])
def test_divided__what_concerns_all_parts__is_run_as_a_whole(limit, ways):
    options, stream = OPTIONS, demand(1.0)
    if limit == "window":
        options = replace(options, window_s=0.5)
    elif limit == "samples":
        options = replace(options, sample_partitions=True)
    else:
        stream = replace(stream, block_tokens=512)
    outcome = run_fleet_divided(deployed(), stream, options, jobs=2)
    assert ways == []
    assert outcome.total().requests
