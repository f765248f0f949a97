"""Panels of the multiplexing itself: headroom, predictions, fairness, and the ledger of token blocks."""

from collections.abc import Sequence

from scripts.chart.dashboards.panels import Panel
from scripts.chart.dashboards.promql import latency, of_models_on_units, of_units, rate


def multiplexing_row() -> Sequence[Panel]:
    held, capacity = (
        f'max by (model, gateway) (muxfleet_ledger_blocks{{job=~"$job", model=~"$model", state="{state}"}})'
        for state in ("held", "capacity")
    )
    return [
        Panel(
            title="Headroom of decode",
            queries={"{{unit}}": of_units("muxfleet_decode_headroom_ratio")},
            unit="percentunit",
            description="Share of the tightest TBT target that decode steps leave; negative: missed.",
            may_be_negative=True,
        ),
        Panel(
            title="Decode step, predicted and achieved",
            queries={"{{unit}} {{kind}}": 'max by (unit, kind) (muxfleet_decode_step_seconds{job=~"$job"})'},
            unit="s",
        ),
        Panel(
            title="Requests held up by neighbours",
            queries={
                "{{model}} by {{neighbour}}, {{slo}}": "sum by (model, neighbour, slo) "
                "(max by (model, neighbour, unit, slo) "
                '(rate(muxfleet_neighbour_slowdown_seconds_total{job=~"$job", model=~"$model"}[$__rate_interval])))'
            },
            unit="short",
            description="Seconds per second that a model's requests lose to another model of their unit.",
        ),
        latency("Error of the predicted first token", "muxfleet_ttft_prediction_error_seconds"),
        Panel(
            title="Fairness gap",
            queries={"{{unit}}": of_units("muxfleet_unit_fairness_gap")},
            unit="percentunit",
            description="Largest difference between models' used shares of their quotas.",
        ),
        Panel(
            title="Ledger: blocks promised of what may be",
            queries={"{{model}} at {{gateway}}": f"{held} / ({capacity} > 0)"},
            unit="percentunit",
        ),
        Panel(
            title="Attainment, as engines measure it",
            queries={
                "{{model}} on {{unit}} {{slo}}": "max by (model, unit, slo) "
                '(muxfleet_unit_slo_attainment_ratio{job=~"$job", model=~"$model"})'
            },
            unit="percentunit",
        ),
        Panel(
            title="Tokens per second",
            queries={
                "{{model}} on {{unit}} {{phase}}": "max by (model, unit, phase) "
                '(muxfleet_unit_tokens_per_second{job=~"$job", model=~"$model"})'
            },
            unit="short",
        ),
        Panel(
            title="Prefix hits",
            queries={
                "{{model}} on {{unit}}": of_models_on_units("muxfleet_prefix_hit_ratio"),
                "{{model}} routed": rate("muxfleet_routed_prefix_tokens_total", "model")
                + " / "
                + rate("muxfleet_prompt_tokens_total", "model"),
            },
            unit="percentunit",
        ),
        Panel(
            title="Preemptions",
            queries={
                "{{model}} on {{unit}}": "max by (model, unit) "
                '(rate(muxfleet_preemptions_total{job=~"$job", model=~"$model"}[$__rate_interval]))'
            },
            unit="short",
        ),
        Panel(
            title="KV pool",
            queries={"{{unit}} {{state}}": 'max by (unit, state) (muxfleet_unit_kv_blocks{job=~"$job"})'},
            unit="short",
        ),
        Panel(
            title="Partitioned",
            queries={"{{unit}}": of_units("muxfleet_unit_partitioned")},
            unit="short",
            description="0: prefill and decode compete for all SMs.",
        ),
        Panel(
            title="Contention guard: cells moved",
            queries={
                "{{unit}}": 'max by (unit) (rate(muxfleet_guard_cells_moved_total{job=~"$job"}[$__rate_interval]))'
            },
            unit="short",
        ),
    ]
