"""The product's control loop over a simulated fleet: models move while requests come, in virtual time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from placement.estimation.problem_arrays import Estimator
from placement.solvers.entry import IsTimeUp
from placement.solvers.registry import SOLVERS
from placement.solvers.search import SearchSolver
from router.limits import GatewayLimits
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """
name: shifting
models:
  - id: a
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 12.0, prompt_tokens: 1500, output_tokens: 8}
    replicas: {min: 1, max: 3}
  - id: b
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 0.5, prompt_tokens: 1500, output_tokens: 8}
    replicas: {min: MIN, max: 3, idle_after_s: 5}
pools:
  - {name: p, device: simulated, gpu_type: A40, gpus_per_node: 3, kv_memory: 8GiB, device_memory: 30GiB,
     host_memory: HOST}
placement: {solver: search, replan: REPLAN, replan_every_s: 5, min_residency_s: RESIDENCY, max_moves_per_min: 30}
"""
MUX = Deployment(name="mux", policy="mux")
ROUNDS = 40  # of a search for three units that can never serve all: its own number is for larger fleets


@pytest.fixture(scope="module", autouse=True)
def brief_searches() -> Iterator[None]:
    def make(estimator: Estimator, is_time_up: IsTimeUp) -> SearchSolver:
        return SearchSolver(estimator=estimator, is_time_up=is_time_up, rounds=ROUNDS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploy.simulation.control.SOLVERS", {"search": replace(SOLVERS["search"], make=make)})
        yield


def fleet(*, replan: str = "auto", least: int = 1, residency_s: float = 5.0, host_memory: str = "0") -> FleetFile:
    """A unit has room for one model beside its pool."""
    text = FLEET.replace("REPLAN", replan).replace("MIN", str(least)).replace("RESIDENCY", str(residency_s))
    text = text.replace("HOST", host_memory)
    return parse_fleet_file(text, name="shifting.yaml", base=EXAMPLES)


def stream(*records: TraceRecord) -> RequestStream:
    ordered = sorted(records, key=lambda r: r.arrival_s)
    return RequestStream(
        name="t", records=lambda: iter(ordered), block_tokens=None, count=len(ordered), span_s=ordered[-1].arrival_s
    )


def every(period_s: float, model: str, *, start_s: float, end_s: float, output_tokens: int = 8) -> list[TraceRecord]:
    count = int((end_s - start_s) / period_s)
    return [
        TraceRecord(arrival_s=start_s + i * period_s, input_tokens=1500, output_tokens=output_tokens, model=model)
        for i in range(count)
    ]


def run(
    file: FleetFile, requests: RequestStream, loads: LoadTimes | None = None
) -> tuple[FleetOutcome, list[RequestOutcome]]:
    outcomes: list[RequestOutcome] = []
    deployed = deploy_fleet(file, MUX, loads=loads or LoadTimes())
    options = RunOptions(limits=GatewayLimits(hold_s=60.0), gateways=2)
    return run_fleet(deployed, requests, options, on_outcome=outcomes.append), outcomes


def moves(outcome: FleetOutcome) -> list[str]:
    return [move for decision in reversed(outcome.decisions) for move in decision.moves]


def late_requests(outcome: FleetOutcome, model: str) -> int:
    return outcome.models[model].requests - outcome.models[model].attained


def flip() -> RequestStream:
    before = [*every(1 / 5, "a", start_s=0, end_s=15), *every(2.0, "b", start_s=0.3, end_s=15)]
    after = [*every(1 / 5, "b", start_s=15, end_s=50), *every(2.0, "a", start_s=15.3, end_s=50)]
    return stream(*before, *after)


@pytest.fixture(scope="module")
def flipped() -> tuple[FleetOutcome, list[RequestOutcome]]:
    """One run; tests read it."""
    return run(fleet(), flip())


def test_control_loop__popularity_flips__replicas_follow_and_nothing_is_lost(
    flipped: tuple[FleetOutcome, list[RequestOutcome]],
) -> None:
    fixed, _ = run(fleet(replan="off"), flip())
    led, outcomes = flipped

    assert moves(fixed) == []
    assert any(m.startswith("load b") for m in moves(led))
    assert all(o.ending is Ending.FINISHED for o in outcomes)
    assert all(o.output_tokens == o.requested_tokens for o in outcomes)
    assert late_requests(led, "b") < 20  # of 182
    assert late_requests(fixed, "b") > 40


def test_control_loop__same_requests__same_moves_and_figures(
    flipped: tuple[FleetOutcome, list[RequestOutcome]],
) -> None:
    (once, outcomes), (again, same) = flipped, run(fleet(), flip())

    assert moves(once) == moves(again) != []
    assert outcomes == same


def test_control_loop__model_asleep_is_asked_for__its_request_waits_as_long_as_the_load_takes() -> None:
    sleepy = fleet(least=0)
    requests = stream(
        *every(1.0, "a", start_s=0, end_s=60),
        TraceRecord(arrival_s=30.2, input_tokens=100, output_tokens=4, model="b"),
    )
    loads = LoadTimes(bytes_per_s=1e12, fixed_s=7.0)

    led, outcomes = run(sleepy, requests, loads)

    (woken,) = [o for o in outcomes if o.model == "b"]
    assert any(m.startswith("drain b") for m in moves(led)), "nobody asked for it at first"
    assert woken.ending is Ending.FINISHED
    assert woken.ttft_s is not None
    assert 7.0 < woken.ttft_s < 9.0


def test_control_loop__model_asleep_in_host_memory__its_request_waits_as_long_as_the_copy_takes() -> None:
    sleepy = fleet(least=0, host_memory="16GiB")
    requests = stream(
        *every(1.0, "a", start_s=0, end_s=60),
        TraceRecord(arrival_s=30.2, input_tokens=100, output_tokens=4, model="b"),
    )

    led, outcomes = run(sleepy, requests, LoadTimes(bytes_per_s=1e12, fixed_s=7.0, wake_fixed_s=0.0))

    (woken,) = [o for o in outcomes if o.model == "b"]
    assert any(m.startswith("wake b") for m in moves(led))
    assert woken.ttft_s is not None
    assert 0.6 < woken.ttft_s < 3.0  # 16 GB over PCIe, and two views of half a second


def test_control_loop__unit_lets_a_model_go_under_a_long_answer__it_goes_on_elsewhere_with_all_its_tokens() -> None:
    """The answer outlives the time that a unit gives to what is left of a model."""
    long = [TraceRecord(arrival_s=1.0 + 0.1 * i, input_tokens=200, output_tokens=1500, model="a") for i in range(6)]
    requests = stream(*long, *every(1 / 6, "b", start_s=5, end_s=80))

    led, outcomes = run(fleet(), requests)

    taken = [o for o in outcomes if o.model == "a"]
    assert any(m.startswith("drain a") for m in moves(led))
    assert [o.ending for o in taken] == [Ending.FINISHED] * 6
    assert [o.output_tokens for o in taken] == [1500] * 6
    assert max(max(o.gaps_s) for o in taken) > 0.2, "it was computed again somewhere"


@pytest.mark.parametrize("replan", ["shadow", "scratch"])
def test_control_loop__baselines__every_request_is_answered_once(replan: str) -> None:
    _, outcomes = run(fleet(replan=replan), flip())

    assert sorted(o.index for o in outcomes) == list(range(flip().count))
