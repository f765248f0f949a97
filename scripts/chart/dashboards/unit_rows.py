"""Builds the dashboard of a fleet's units: memory, work, and how well models and phases share them."""

from collections.abc import Sequence

from scripts.chart.dashboards.multiplexing_row import multiplexing_row
from scripts.chart.dashboards.panels import MODEL, RELEASE, Dashboard, Panel
from scripts.chart.dashboards.promql import of_models_on_units, of_units


def units_dashboard() -> Dashboard:
    return Dashboard(
        name="units",
        title="muxfleet / units",
        variables=(RELEASE, MODEL),
        rows={"Memory": _memory(), "Work": _work(), "Multiplexing": multiplexing_row()},
    )


def _memory() -> Sequence[Panel]:
    used = of_models_on_units("muxfleet_kv_blocks", ', state="used"')
    return [
        Panel(
            title="Token blocks used of the quota",
            queries={
                "{{model}} on {{unit}}": used + " / " + of_models_on_units("muxfleet_kv_blocks", ', state="quota"')
            },
            unit="percentunit",
        ),
        Panel(
            title="Token blocks used",
            queries={"{{model}} on {{unit}}": used},
            unit="short",
            is_stacked=True,
        ),
        Panel(
            title="Waiting on units",
            queries={"{{model}} on {{unit}}": of_models_on_units("muxfleet_num_requests_waiting")},
            unit="short",
        ),
    ]


def _work() -> Sequence[Panel]:
    return [
        Panel(
            title="Running on units",
            queries={"{{model}} on {{unit}}": of_models_on_units("muxfleet_num_requests_running")},
            unit="short",
        ),
        Panel(
            title="Partition: SMs of prefill and decode",
            queries={
                "{{unit}} prefill": of_units("muxfleet_unit_sms", ', phase="prefill"'),
                "{{unit}} decode": of_units("muxfleet_unit_sms", ', phase="decode"'),
            },
            unit="short",
            description="Cores on a CPU.",
        ),
        Panel(
            title="Bubbles",
            queries={
                "{{unit}} prefill": of_units("muxfleet_lane_bubble_share", ', phase="prefill"'),
                "{{unit}} decode": of_units("muxfleet_lane_bubble_share", ', phase="decode"'),
            },
            unit="percentunit",
            description="Share of time that a lane idled although there was work.",
        ),
        Panel(
            title="Age of units' reports",
            queries={"{{unit}}": of_units("muxfleet_unit_report_age_seconds")},
            unit="s",
        ),
        Panel(
            title="Age of the gateways' view",
            queries={"{{gateway}}": 'max by (gateway) (muxfleet_telemetry_age_seconds{job=~"$job"})'},
            unit="s",
            description="-1: it has none yet.",
            may_be_negative=True,
        ),
        Panel(
            title="Gateways by version",
            queries={"{{version}}": 'sum by (version) (muxfleet_build_info{job=~"$job"})'},
            unit="short",
        ),
    ]
