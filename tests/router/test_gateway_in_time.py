"""Requests in time at the gateway: first token and every gap, in counters, the controller's view and the report."""

from dataclasses import replace

import pytest
from fleet_values import fleet, unit
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pdmux_actor.messages import Slo
from router.admission.block_ledger import QuotaLedger
from router.admission.demand_counts import DemandCounts
from router.request_terms import GrantedSlo
from router.telemetry.metrics import GatewayMetrics
from router.telemetry.service_report import ServiceReport
from router.telemetry.unit_metrics import UnitCollector
from router.view import FleetView

SLO = Slo(ttft_s=1.0, tbt_s=0.1)


def samples(metrics: GatewayMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_counter__timely_late_first_and_late_gap__counts_the_timely_one() -> None:
    metrics = GatewayMetrics(
        version="1",
        view=lambda: FleetView(models=(), units=(), stream_token=""),
        view_age_s=lambda: 0.0,
        ledger=QuotaLedger(),
    )
    for times_s in ((0.5, 0.55, 0.6), (1.5, 1.55, 1.6), (0.5, 0.55, 0.75)):
        stopwatch = metrics.stopwatch("m", SLO, 0.0)
        for now_s in times_s:
            stopwatch.on_output(1, now_s)
        stopwatch.on_finish()

    found = samples(metrics)
    assert found["muxfleet_answers_total"] == 3
    assert found["muxfleet_requests_in_time_total"] == 1


def test_demand_report__finished_requests__tell_the_controller_how_many_were_in_time() -> None:
    arrivals = DemandCounts()
    for finished, ttft_met, tbt_met in (
        (True, True, True),
        (True, True, False),
        (True, False, True),
        (False, True, True),
    ):
        arrivals.ended("m", output_tokens=1, finished=finished, ttft_met=ttft_met, tbt_met=tbt_met)

    (asked,) = arrivals.report(
        "g", (), held={}, held_low={}, before_first=lambda model: 0, is_ready=lambda model: True, now_s=0.0
    ).models
    assert (asked.finished_total, asked.ttft_met_total, asked.tbt_met_total, asked.in_time_total) == (3, 2, 2, 1)


@pytest.mark.parametrize(
    ("first_s", "gap_s", "expected"), [(1.0, 0.1, "met"), (1.1, 0.1, "missed"), (1.0, 0.11, "missed")]
)
def test_service_report__first_token_and_worst_gap__decide(first_s: float, gap_s: float, expected: str) -> None:
    report = ServiceReport(granted=GrantedSlo(slo=SLO), started_s=0.0, unit_id="u")
    report.first_token(first_s)
    report.worst_gap_s = gap_s

    assert report.headers()["x-muxfleet-slo"] == expected
    assert report.as_dict()["in_time"] is (expected == "met")


def test_unit_collector__attainment_of_requests__is_there_only_with_traffic() -> None:
    seen = unit("u1")
    load = seen.report.load
    registry = CollectorRegistry()
    registry.register(UnitCollector(lambda: fleet(seen)))
    model = load.models[0].model
    labels = {"model": model, "unit": "u1", "slo": "request"}
    assert registry.get_sample_value("muxfleet_unit_slo_attainment_ratio", labels) is None

    first, *others = load.models
    busy = replace(load, models=(replace(first, request_attainment=0.5), *others))
    seen = replace(seen, report=replace(seen.report, load=busy))
    assert registry.get_sample_value("muxfleet_unit_slo_attainment_ratio", labels) == 0.5
