"""A fleet simulated in parts, in processes of their own, finds what it finds as a whole."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import read_fleet_file
from deploy.reports.figure_texts import PERCENTS
from deploy.simulation import divided_run
from deploy.simulation.deployments import DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.divided_run import run_fleet_divided
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream, demand_stream
from router.admission.admission import Queue
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits

FLEET = read_fleet_file(Path(__file__).parents[2] / "examples" / "simulated-32gpu.yaml")  # three parts
OPTIONS = RunOptions(limits=GatewayLimits(), gateways=2)


@cache  # planned once; each run makes its own units
def deployed() -> DeployedFleet:
    return deploy_fleet(FLEET, Deployment(name="mux", policy="mux"))


def demand(duration_s: float) -> RequestStream:
    return demand_stream([expected_demand(m) for m in FLEET.models], duration_s=duration_s, seed=3)


def found(outcome: FleetOutcome) -> dict[str, Any]:
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


def as_whole_and_divided(
    stream: RequestStream, options: RunOptions = OPTIONS
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """What a run as a whole and one in two processes found, and what each was told on the way: requests ended."""
    told: list[list[int]] = [[], []]
    whole = run_fleet(deployed(), stream, options, on_progress=lambda ended, _: told[0].append(ended))
    parts = run_fleet_divided(deployed(), stream, options, jobs=2, on_progress=lambda ended, _: told[1].append(ended))
    return [found(whole), found(parts)], told


def test_divided__nothing_waits__finds_and_tells_what_the_whole_does(ways):
    (whole, parts), told = as_whole_and_divided(demand(6.0))
    assert ways == [True]
    assert parts == whole
    assert told[0][-1] == told[1][-1] == demand(6.0).count
    assert len(told[1]) > len(told[0])  # each part tells its end


@pytest.mark.parametrize("limits", [GatewayLimits(), GatewayLimits(hold_s=2.0, max_queued=24)])
def test_divided__past_capacity__requests_wait_and_the_same_is_found(limits, ways, monkeypatch):
    waits: Counter[str] = Counter()
    offer = GatewayScheduler.offer

    def noted(scheduler, request, now_s):
        decision = offer(scheduler, request, now_s)
        waits[request.model] += isinstance(decision, Queue)
        return decision

    monkeypatch.setattr(GatewayScheduler, "offer", noted)
    options = replace(OPTIONS, limits=limits)
    (whole, parts), _ = as_whole_and_divided(demand(20.0).at_rate(4000.0), options)
    # Of the run as a whole: parts count in their own processes.
    assert all(waits[a] + waits[b] > 10 for a, b in (("llama-8b-a", "qwen-14b-a"), ("llama-8b-b", "qwen-8b-a")))
    assert (whole["total"]["rejected"] > 0) == (limits.hold_s < 30.0)
    assert ways == [True]
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
