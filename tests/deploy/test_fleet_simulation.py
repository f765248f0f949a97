"""A simulated fleet: what goes in comes out, the same way every time, and time and memory behave."""

import gc
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.deployments import BASELINES, Deployment, deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.runs import RunOptions, run_fleet, sweep_rates
from deploy.simulation.streams import RequestStream, demand_stream
from pdmux_actor.scheduling.policies.registry import POLICIES
from placement.demand import ModelDemand
from router.limits import GatewayLimits
from traces.record import TraceRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """
name: two
models:
  - id: large
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.05}
    demand: {rate_per_s: 2.0, prompt_tokens: 800, output_tokens: 40}
  - id: small
    source: ./models/qwen2.5-1.5b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.05}
    demand: {rate_per_s: 4.0, prompt_tokens: 300, output_tokens: 20}
    replicas: {min: 1, max: 2}
pools:
  - {name: h, device: simulated, gpu_type: H100, gpus_per_node: 2, mesh_gpus: 1, kv_memory: 8GiB}
engine: {block_bytes: 64KiB}
"""
OPTIONS = RunOptions(limits=GatewayLimits(), gateways=2)


def fleet() -> FleetFile:
    return parse_fleet_file(FLEET, name="two.yaml", base=EXAMPLES)


def stream(duration_s: float = 8.0, seed: int = 1) -> RequestStream:
    demands = [expected_demand(m) for m in fleet().models]
    return demand_stream(demands, duration_s=duration_s, seed=seed)


def run(deployment: Deployment, requests: RequestStream) -> FleetOutcome:
    return run_fleet(deploy_fleet(fleet(), deployment), requests, OPTIONS)


def figures(outcome: FleetOutcome) -> dict[str, object]:
    return {model: s.figures(outcome.duration_s).as_dict() for model, s in outcome.models.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_fleet_run__any_policy__every_request_ends_with_its_tokens(policy: str) -> None:
    requests = stream()
    asked = list(requests.records())
    outcome = run(Deployment(name=policy, policy=policy), requests)
    total = outcome.total()
    assert total.finished == total.requests == len(asked)
    assert total.output_tokens == sum(r.output_tokens for r in asked)
    assert total.prompt_tokens == sum(r.input_tokens for r in asked)


def test_fleet_run__same_seed__same_figures() -> None:
    mux = Deployment(name="mux", policy="mux")
    assert figures(run(mux, stream())) == figures(run(mux, stream()))
    assert figures(run(mux, stream())) != figures(run(mux, stream(seed=2)))


def test_fleet_run__disaggregated__decode_does_not_feel_prefills() -> None:
    """One model on two GPUs: prompts of 3,000 tokens lengthen the gaps of others where both phases share the GPU."""
    only = fleet().model_copy(update={"models": fleet().models[:1]})
    demand = ModelDemand(model="large", rate_per_s=6.0, prompt_tokens=3000, output_tokens=60)
    requests = demand_stream([demand], duration_s=10.0, seed=3)
    pair = run_fleet(deploy_fleet(only, BASELINES["disaggregated"]), requests, OPTIONS)
    shared = run_fleet(deploy_fleet(only, Deployment(name="prefill_first", policy="prefill_first")), requests, OPTIONS)
    assert pair.total().finished == shared.total().finished == requests.count
    assert pair.total().tbt.percentile_s(99) < 0.5 * shared.total().tbt.percentile_s(99)


def test_fleet_run__shared_prefixes__are_computed_once() -> None:
    """The same long prompt again and again: with block hashes its later prefills are nearly free."""

    def requests(hashes: tuple[int, ...]) -> RequestStream:
        records = [
            TraceRecord(
                arrival_s=float(i), input_tokens=4096, output_tokens=4, model="large", prefix_block_hashes=hashes
            )
            for i in range(6)
        ]
        return RequestStream(name="same", records=lambda: iter(records), block_tokens=512, count=6, span_s=5.0)

    mux = Deployment(name="mux", policy="mux")
    cached, fresh = run(mux, requests(tuple(range(8)))), run(mux, requests(()))
    assert cached.models["large"].ttft.percentile_s(50) < 0.4 * fresh.models["large"].ttft.percentile_s(50)


def test_fleet_run__model_without_a_unit__is_turned_away_not_waited_for() -> None:
    cramped = fleet().model_copy(
        update={"pools": tuple(p.model_copy(update={"device_memory": 12 * 2**30}) for p in fleet().pools)}
    )
    deployed = deploy_fleet(cramped, Deployment(name="mux", policy="mux"))
    outcome = run_fleet(deployed, stream(), OPTIONS)
    assert set(deployed.unplaced) == {"large"}
    assert outcome.models["large"].rejected == outcome.models["large"].requests > 0
    assert outcome.models["small"].finished == outcome.models["small"].requests > 0


def test_fleet_run__last_requests_are_refused__rates_are_over_their_time_too() -> None:
    records = tuple(
        TraceRecord(arrival_s=float(i), input_tokens=100, output_tokens=5, model="large" if i else "small")
        for i in range(11)
    )
    requests = RequestStream(name="t", records=lambda: iter(records), block_tokens=None, count=11, span_s=10.0)
    only_small = fleet().model_copy(
        update={"pools": tuple(p.model_copy(update={"device_memory": 12 * 2**30}) for p in fleet().pools)}
    )

    outcome = run_fleet(deploy_fleet(only_small, Deployment(name="mux", policy="mux")), requests, OPTIONS)

    total = outcome.total().figures(outcome.duration_s)
    assert (total.finished, total.rejected, outcome.duration_s) == (1, 10, 10.0)
    assert total.requests_in_time_per_s == pytest.approx(0.1)


def test_run_fleet__run_that_fails__leaves_the_collector_as_it_was() -> None:
    deployed = deploy_fleet(fleet(), Deployment(name="mux", policy="mux"))
    before, during = gc.get_threshold(), []

    def fail(requests: int, now_s: float) -> None:
        during.append(gc.get_threshold())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fleet(deployed, stream(), OPTIONS, on_progress=fail)
    assert during[0][0] > before[0]
    assert gc.get_threshold() == before


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_run__any_policy__leaves_nothing_to_the_collector(policy: str) -> None:
    """What a decision leaves behind goes by its reference count: cycles took a tenth of a run to find."""
    gc.disable()
    gc.freeze()  # what is there already is not looked through: of all packages that takes a second each time
    try:
        deployed = deploy_fleet(fleet(), Deployment(name=policy, policy=policy))
        whole = FleetRun(
            models=deployed.models, build_units=deployed.build, stream=stream(3.0), limits=GatewayLimits(), gateways=2
        )
        gc.collect()
        outcome = whole.run()
        assert gc.collect() < 20  # the run, its units and their schedulers are still alive
    finally:
        gc.enable()  # and what was there stays frozen, as tests/conftest.py has it
    assert outcome.steps > 100


@pytest.mark.parametrize("rate_per_s", [6.0, 20.0])
def test_run__a_first_token_is_held_past_its_time__the_unit_wakes_and_all_requests_end(rate_per_s: float) -> None:
    """A wake that was asked for a time in the past was taken for one that had moved: the unit never woke again."""
    tight = parse_fleet_file(FLEET.replace("tbt_s: 0.05", "tbt_s: 0.02"), name="tight.yaml", base=EXAMPLES)
    deployed = deploy_fleet(tight, Deployment(name="mux", policy="mux"))
    total = run_fleet(deployed, stream().at_rate(rate_per_s), OPTIONS).total()

    assert total.finished == total.requests > 0


def test_run__gateways_demand_reports__tell_as_many_requests_in_time_as_the_figures() -> None:
    """What the control loop sees of a simulated fleet."""
    deployed = deploy_fleet(fleet(), Deployment(name="mux", policy="mux"))
    whole = FleetRun(
        models=deployed.models, build_units=deployed.build, stream=stream(8.0), limits=GatewayLimits(), gateways=2
    )
    outcome = whole.run()

    reports = [gateway.scheduler.demand_report(outcome.ended_s) for gateway in whole._gateways]
    told = {m: sum(a.in_time_total for r in reports for a in r.models if a.model == m) for m in outcome.models}
    assert told == {model: statistics.in_time for model, statistics in outcome.models.items()}
    assert sum(told.values()) > 0


def test_sweep__growing_rates__ends_between_the_last_good_and_the_first_bad() -> None:
    deployed = deploy_fleet(fleet(), Deployment(name="mux", policy="mux"))
    requests = stream(duration_s=40.0)
    found = sweep_rates([4.0, 400.0], lambda rate: run_fleet(deployed, requests.at_rate(rate), OPTIONS), refinements=3)
    assert 4.0 <= found.goodput_per_s < 400.0
    assert [p.rate_per_s for p in found.points] == sorted(p.rate_per_s for p in found.points)
    for point in found.points:
        assert (point.attainment >= 0.99) == (point.rate_per_s <= found.goodput_per_s)
        assert (point.request_attainment >= 0.99) == (point.rate_per_s <= found.goodput_requests_per_s)
        assert point.request_attainment <= point.attainment


def test_stream__at_rate__scales_times_and_nothing_else() -> None:
    whole = stream()
    doubled = whole.at_rate(2 * whole.rate_per_s)
    for before, after in zip(whole.records(), doubled.records(), strict=True):
        assert after == replace(before, arrival_s=after.arrival_s)
        assert after.arrival_s == pytest.approx(before.arrival_s / 2)


def test_stream__first__is_a_prefix() -> None:
    whole = list(stream().records())
    assert list(stream().first(5, None).records()) == whole[:5]
    until = whole[9].arrival_s
    assert list(stream().first(None, until).records()) == list(
        itertools.takewhile(lambda r: r.arrival_s < until, whole)
    )
