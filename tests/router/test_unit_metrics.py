"""What units report, as Prometheus and `muxfleet status` show it."""

from dataclasses import replace

import pytest
from fleet_values import fleet, unit
from prometheus_client import CollectorRegistry

from deploy.commands.fleet_tables import as_dict, problems
from deploy.control.fleet_status import FleetStatus, UnitStatus
from placement.plan import Plan
from router.telemetry.unit_metrics import UnitCollector

REASON = "cuGreenCtxCreate: CUDA_ERROR_NOT_SUPPORTED; install an NVIDIA driver"


@pytest.mark.parametrize(("reason", "partitioned"), [(None, 1.0), (REASON, 0.0)])
def test_unit_metrics__partitioned_or_not__gauge_and_status_agree(reason: str | None, partitioned: float) -> None:
    seen = unit("u1")
    load = replace(seen.report.load, unpartitioned_reason=reason)
    seen = replace(seen, report=replace(seen.report, load=load))
    registry = CollectorRegistry()
    registry.register(UnitCollector(lambda: fleet(seen)))
    nothing = Plan(units=())
    status = FleetStatus(
        models=(),
        units=(UnitStatus(report=seen.report, silent_s=0.0),),
        policy="mux",
        plan=nothing,
        goal=nothing,
        decisions=(),
    )

    assert registry.get_sample_value("muxfleet_unit_partitioned", {"unit": "u1"}) == partitioned
    assert as_dict(status)["units"][0]["unpartitioned_reason"] == reason
    assert list(problems(status)) == (
        [f"unit u1: prefill and decode compete for all SMs: {REASON}"] if reason is not None else []
    )
