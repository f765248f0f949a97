"""Spot nodes in virtual time: the provider takes them away, after a notice in which they are emptied, or at once."""

import pytest
from test_simulated_scaling import MUX, fleet

from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.record import TraceRecord


def steady() -> RequestStream:
    """As much as needs two nodes."""
    records = [TraceRecord(arrival_s=i / 5.0, input_tokens=1000, output_tokens=40, model="a") for i in range(1500)]
    span_s = records[-1].arrival_s
    return RequestStream(
        name="steady", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=span_s
    )


def run(notice_s: float) -> FleetOutcome:
    spot = f"spot: {{price_per_hour: 0.4, lost_every_s: 120, notice_s: {notice_s}}}"
    deployed = deploy_fleet(fleet(f"{spot}, schedule: [{{nodes: 2}}]"), MUX, loads=LoadTimes())
    return run_fleet(deployed, steady(), RunOptions(limits=GatewayLimits(hold_s=60.0), gateways=1))


@pytest.fixture(scope="module")
def warned() -> FleetOutcome:
    return run(40.0)


def test_spot__notice_long_enough__nodes_are_replaced_and_no_request_was_on_one_that_was_taken(
    warned: FleetOutcome,
) -> None:
    use, total = warned.node_use, warned.total()

    assert use is not None
    assert use.lost >= 2
    assert use.cut == 0
    assert (total.failed, total.finished + total.rejected) == (0, total.requests)
    assert total.finished > 0.95 * total.requests


def test_spot__nodes__cost_what_the_market_asks(warned: FleetOutcome) -> None:
    assert warned.node_use is not None
    assert warned.node_use.cost == pytest.approx(0.4 * warned.node_use.node_hours)


def test_spot__no_notice__requests_that_are_cut_go_on_elsewhere() -> None:
    taken = run(0.0)
    use, total = taken.node_use, taken.total()

    assert use is not None
    assert use.lost >= 2
    assert use.cut > 0
    assert total.finished + total.rejected + total.failed == total.requests
    assert total.failed == 0


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        (GatewayLimits(hold_s=60.0, max_attempts=100, max_deaths=100), {"finished": 1, "failed": 0}),
        (GatewayLimits(hold_s=60.0), {"finished": 0, "failed": 1}),
    ],
)
def test_spot__nodes_die_under_a_long_answer__ends_after_as_many_as_the_gateway_allows(
    limits: GatewayLimits, ends: dict[str, int]
) -> None:
    spot = "spot: {price_per_hour: 0.4, lost_every_s: 60, notice_s: 0}, schedule: [{nodes: 3}]"
    deployed = deploy_fleet(fleet(spot), MUX, loads=LoadTimes(bytes_per_s=1e12))
    record = TraceRecord(arrival_s=0.0, input_tokens=100, output_tokens=7900, model="a")
    stream = RequestStream(name="one", records=lambda: iter([record]), block_tokens=None, count=1, span_s=0.0)
    outcome = run_fleet(deployed, stream, RunOptions(limits=limits, gateways=1))

    assert outcome.node_use is not None
    assert outcome.node_use.cut >= limits.max_attempts or ends["finished"]
    assert {name: getattr(outcome.total(), name) for name in ends} == ends
