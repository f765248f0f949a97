"""Units of a simulated fleet that follow leases."""

from dataclasses import replace

import pytest
from model_shapes import LLAMA_3_8B

from deploy.control.step_evidence import StepEvidence
from deploy.planning.pool_hardware import gpu_hardware
from deploy.simulation.deployments import model_info
from deploy.simulation.engine import EngineDesign, PlacedModel
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.leased_unit import LeasedUnit, LoadableModel
from deploy.simulation.units import UnitIdentity
from pdmux_actor.executor.simulated import GPU_HOST_S
from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.demand import ModelDemand
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from profiler.gpus.a100_80g import DEVICE as A100_80G

BLOCK_BYTES, QUOTA_BLOCKS = 16 * 1024, 100_000
SLO = Slo(ttft_s=2.0, tbt_s=0.2)
SPEC = replace(LLAMA_3_8B, num_kv_heads=LLAMA_3_8B.num_heads)  # more KV, so that the quotas bind


def test_obey__engine_has_moved_quota_since__quotas_are_the_leases() -> None:
    """Else they could sum to more than the pool."""
    agenda = EventQueue()
    unit = leased_unit(agenda)
    serve_ten_seconds(unit, agenda)
    assert quotas(unit)["hot"] > QUOTA_BLOCKS > quotas(unit)["cold"]

    models = tuple(ModelAssignment(model=m, source="", quota_blocks=QUOTA_BLOCKS, slo=SLO) for m in ("hot", "cold"))
    unit.obey(Lease(version=1, models=models, policy="mux", stream_token=""))

    assert quotas(unit) == {"hot": QUOTA_BLOCKS, "cold": QUOTA_BLOCKS}


@pytest.mark.parametrize(("finish_s", "gone_after_s"), [({}, 30.0), ({"hot": 4.0}, 4.0)])
def test_obey__model_leaves_with_requests_open__goes_when_their_time_is_up(
    finish_s: dict[str, float], gone_after_s: float
) -> None:
    agenda = EventQueue()
    unit = leased_unit(agenda)
    serve_ten_seconds(unit, agenda, max_tokens=100_000)
    began_s = agenda.clock.now_s

    unit.obey(Lease(version=1, models=(), policy="mux", stream_token="", finish_s=finish_s))
    while any(s.model == "hot" for s in unit.heartbeat().models):
        assert agenda.step()

    assert agenda.clock.now_s - began_s == pytest.approx(gone_after_s, abs=0.5)


@pytest.mark.parametrize("slowdown", [1.0, 1.3])
def test_unit__slower_than_its_figures__its_heartbeats_tell_by_how_much(slowdown: float) -> None:
    agenda = EventQueue()
    unit = leased_unit(agenda, slowdown=slowdown)
    serve_ten_seconds(unit, agenda)
    evidence = StepEvidence()
    evidence.hear(unit.heartbeat(), "p/n/0", host_s=GPU_HOST_S, now_s=10.0)

    factors = {r.phase: r.factor for r in evidence.residuals("u")}

    assert factors["decode"] == pytest.approx(slowdown, rel=0.06)


def serve_ten_seconds(unit: LeasedUnit, agenda: EventQueue, *, max_tokens: int = 500) -> None:
    """Of sixty requests for the hot model."""
    for i in range(60):
        request = GenerateRequest(
            request_id=str(i),
            model="hot",
            prompt_token_ids=tuple(range(300)),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            slo=SLO,
        )
        assert unit.submit(request)
    while agenda.clock.now_s < 10.0:
        assert agenda.step()


def quotas(unit: LeasedUnit) -> dict[str, int]:
    return {m.model: m.quota_blocks for m in unit.load_report().models}


def leased_unit(agenda: EventQueue, *, slowdown: float = 1.0) -> LeasedUnit:
    capacity = UnitCapacity(
        unit_id="u",
        num_gpus=1,
        memory_bytes=A100_80G.memory_bytes,
        block_bytes=BLOCK_BYTES,
        total_blocks=2 * QUOTA_BLOCKS,
        device=A100_80G,
    )
    infos = {name: model_info(placement_model(name), capacity) for name in ("hot", "cold")}
    hardware = gpu_hardware(A100_80G, 1)
    design = EngineDesign(
        device=hardware.device,
        latency=hardware.latency,
        block_bytes=BLOCK_BYTES,
        total_blocks=2 * QUOTA_BLOCKS,
        policy="mux",
        settings=SchedulerSettings(),
        models=tuple(PlacedModel(info=info, quota_blocks=QUOTA_BLOCKS) for info in infos.values()),
        host_s=hardware.host_s,
        slowdown=slowdown,
    )
    identity = UnitIdentity(unit_id="u", pool="p", num_gpus=1, memory_bytes=A100_80G.memory_bytes)
    loadable = {name: LoadableModel(info=info, load_s=1.0) for name, info in infos.items()}
    return LeasedUnit(identity, design, loadable, agenda, lambda events: None)


def placement_model(name: str) -> PlacementModel:
    return PlacementModel(
        model=name,
        spec=SPEC,
        demand=ModelDemand(model=name, rate_per_s=1.0, prompt_tokens=300, output_tokens=500),
        min_replicas=1,
        max_replicas=1,
        max_model_len=2048,
    )
