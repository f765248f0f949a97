"""Views that tell gateways nothing, since no request is there, are not made: what comes is as if they had been."""

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fleet_file.settings import read_fleet_file
from deploy.simulation.deployments import BASELINES, DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.gateway import SimulatedGateway
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from router.view import FleetView
from traces.outcome import RequestOutcome
from traces.record import TraceRecord

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated-8gpu.yaml"
GAPS_S = (0.0, 0.2, 30.0, 0.0, 7.5, 0.5, 1.0, 1.5, 2.25, 60.0, 0.01, 5.0, 5.5, 6.0, 100.0, 0.0)


class StepByStep(FleetRun):
    def _skip_views(self, now_s: float) -> int:
        return 0


def bursts() -> RequestStream:
    """Some arrive at the very time of a view, and some share their prompts."""
    records, time_s = list[TraceRecord](), 0.0
    for number, gap_s in enumerate(GAPS_S * 3):
        time_s += gap_s
        model = ("llama-8b", "qwen-8b", "llama-70b")[number % 3]
        blocks = (1, 2, number // 6)
        records.append(
            TraceRecord(
                arrival_s=time_s,
                input_tokens=1500 + 97 * (number % 5),
                output_tokens=1 + 30 * (number % 4),
                model=model,
                prefix_block_hashes=blocks,
            )
        )
    return RequestStream(
        name="bursts", records=lambda: iter(records), block_tokens=512, count=len(records), span_s=time_s
    )


def run(
    kind: type[FleetRun], deployed: DeployedFleet, window_s: float | None = None
) -> tuple[FleetOutcome, list[RequestOutcome]]:
    ended: list[RequestOutcome] = []
    whole = kind(
        models=deployed.models,
        build_units=deployed.build,
        stream=bursts(),
        limits=GatewayLimits(),
        gateways=2,
        window_s=window_s,
        view_updates=deployed.view_updates,
        on_outcome=ended.append,
    )
    return whole.run(), ended


@pytest.mark.parametrize("deployment", [Deployment(name="mux", policy="mux"), BASELINES["disaggregated"]])
@pytest.mark.parametrize("window_s", [None, 250.2])
def test_views__fleet_idles_between_requests__all_is_as_if_each_had_been_told(
    deployment: Deployment, window_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[FleetView] = []

    def counted(self: SimulatedGateway, view: FleetView) -> None:
        told.append(view)
        on_view(self, view)

    on_view = SimulatedGateway.on_view
    monkeypatch.setattr(SimulatedGateway, "on_view", counted)
    deployed = deploy_fleet(read_fleet_file(EXAMPLE), deployment)

    outcome, ended = run(FleetRun, deployed, window_s)
    told_to = len(told)
    by_steps, ended_by_steps = run(StepByStep, deployed, window_s)

    assert ended == ended_by_steps
    assert len(ended) > 10
    assert replace(outcome, models={}) == replace(by_steps, models={})
    assert told_to < (len(told) - told_to) / 2
    assert {m: s.figures(1.0) for m, s in outcome.models.items()} == {
        m: s.figures(1.0) for m, s in by_steps.models.items()
    }
