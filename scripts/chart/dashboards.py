"""Grafana dashboards of the chart, as Grafana's JSON model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_ANNOTATIONS = (
    ("Losses", "unit_lost|unit_restarted|controller_started|out|model_failed", "red"),
    ("Plans and moves", "plan|move", "blue"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`queries` maps legends to PromQL, in which $job is the release."""

    title: str
    queries: Mapping[str, str]
    unit: str
    description: str = ""
    is_stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    name: str
    title: str
    rows: Mapping[str, Sequence[Panel]]


def _rate(metric: str, by: str, selector: str = "") -> str:
    return f'sum by ({by}) (rate({metric}{{job=~"$job", model=~"$model"{selector}}}[$__rate_interval]))'


def _quantile(quantile: float, histogram: str) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{histogram}_bucket', 'model, le')})"


def _latency(title: str, histogram: str) -> Panel:
    return Panel(
        title=title,
        queries={"{{model}} p50": _quantile(0.5, histogram), "{{model}} p99": _quantile(0.99, histogram)},
        unit="s",
    )


def _attainment(slo: str) -> Panel:
    met = _rate("muxfleet_answers_slo_met_total", "model", f', slo="{slo}"')
    return Panel(
        title=f"{slo.upper()} attainment",
        queries={"{{model}}": f"{met} / {_rate('muxfleet_answers_total', 'model')}"},
        unit="percentunit",
        description="Share of finished answers within their model's target.",
    )


def _of_units(metric: str, selector: str = "", model: str = ', model=~"$model"') -> str:
    by = "model, unit" if model else "unit"
    return f'max by ({by}) ({metric}{{job=~"$job"{model}{selector}}})'


def fleet_dashboard() -> Dashboard:
    traffic = [
        Panel(title="Requests", queries={"{{model}}": _rate("muxfleet_requests_total", "model")}, unit="reqps"),
        Panel(
            title="Answers by status",
            queries={"{{status}}": _rate("muxfleet_requests_total", "status") + " > 0"},
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Refused by admission (429)",
            queries={"{{model}}": _rate("muxfleet_requests_shed_total", "model")},
            unit="reqps",
        ),
        Panel(
            title="Output tokens",
            queries={"{{model}}": _rate("muxfleet_generation_tokens_total", "model")},
            unit="short",
            description="Tokens per second, counted when a generation ends.",
        ),
        Panel(
            title="Prompt tokens", queries={"{{model}}": _rate("muxfleet_prompt_tokens_total", "model")}, unit="short"
        ),
        Panel(
            title="In flight, and waiting for a first token",
            queries={
                "{{model}} in flight": 'sum by (model) (muxfleet_generations_in_flight{job=~"$job", model=~"$model"})',
                "{{model}} waiting": 'sum by (model) (muxfleet_generations_queued{job=~"$job", model=~"$model"})',
            },
            unit="short",
        ),
    ]
    service = [
        Panel(
            title="Requests in time",
            queries={
                "{{model}}": f"{_rate('muxfleet_requests_in_time_total', 'model')}"
                f" / {_rate('muxfleet_answers_total', 'model')}"
            },
            unit="percentunit",
            description="Share of finished answers whose first token and every gap were within target.",
        ),
        _attainment("ttft"),
        _attainment("tbt"),
        Panel(
            title="Generations that lost their unit",
            queries={"{{model}}": _rate("muxfleet_generation_continuations_total", "model")},
            unit="short",
            description="They went on elsewhere; clients saw nothing.",
        ),
        _latency("Time to first token", "muxfleet_time_to_first_token_seconds"),
        _latency("Gap between outputs", "muxfleet_inter_token_latency_seconds"),
        _latency("Whole request", "muxfleet_request_duration_seconds"),
    ]
    return Dashboard(
        name="fleet", title="muxfleet / fleet", rows={"Service": service, "Traffic": traffic, "Control": _control_row()}
    )


def _control_row() -> Sequence[Panel]:
    """What the control loop did, and what became of requests that it could not help."""
    count, total = _of_models("muxfleet_model_load_seconds_count"), _of_models("muxfleet_model_load_seconds_sum")
    return [
        Panel(
            title="Events of the fleet",
            queries={
                "{{kind}}": 'max by (kind) (increase(muxfleet_fleet_events_total{job=~"$job"}[$__rate_interval])) > 0'
            },
            unit="short",
            description="`muxfleet incident` tells each.",
        ),
        Panel(
            title="Units by phase of the model",
            queries={"{{model}} {{phase}}": _of_models("muxfleet_model_replicas", "model, phase") + " > 0"},
            unit="short",
        ),
        Panel(
            title="Mean time of a load",
            queries={"{{model}}": f"{total} / ({count} > 0)"},
            unit="s",
            description="Since the control loop started.",
        ),
        _latency("Cold start", "muxfleet_cold_start_seconds"),
        Panel(
            title="Requests that no unit came for, and that failed on one",
            queries={
                "{{model}} none came": _rate("muxfleet_requests_unserved_total", "model"),
                "{{model}} failed": _rate("muxfleet_generations_failed_total", "model"),
            },
            unit="reqps",
        ),
        Panel(
            title="Refused by API keys",
            queries={
                "{{key}} too fast": "sum by (key) "
                '(rate(muxfleet_requests_rate_limited_total{job=~"$job"}[$__rate_interval]))',
                "not admitted": 'sum(rate(muxfleet_requests_unauthorized_total{job=~"$job"}[$__rate_interval]))',
            },
            unit="reqps",
        ),
        _latency("Wait at the gateway", "muxfleet_queue_time_seconds"),
        _latency("Error of the predicted first token", "muxfleet_ttft_prediction_error_seconds"),
        Panel(
            title="What units were chosen by",
            queries={
                "{{reason}}": 'sum by (reason) (rate(muxfleet_routing_decisions_total{job=~"$job"}[$__rate_interval]))'
            },
            unit="reqps",
        ),
    ]


def _of_models(metric: str, by: str = "model") -> str:
    return f'max by ({by}) ({metric}{{job=~"$job", model=~"$model"}})'


def units_dashboard() -> Dashboard:
    memory = [
        Panel(
            title="Token blocks used of the quota",
            queries={
                "{{model}} on {{unit}}": _of_units("muxfleet_kv_blocks", ', state="used"')
                + " / "
                + _of_units("muxfleet_kv_blocks", ', state="quota"')
            },
            unit="percentunit",
        ),
        Panel(
            title="Token blocks used",
            queries={"{{model}} on {{unit}}": _of_units("muxfleet_kv_blocks", ', state="used"')},
            unit="short",
            is_stacked=True,
        ),
        Panel(
            title="Waiting on units",
            queries={"{{model}} on {{unit}}": _of_units("muxfleet_num_requests_waiting")},
            unit="short",
        ),
    ]
    work = [
        Panel(
            title="Running on units",
            queries={"{{model}} on {{unit}}": _of_units("muxfleet_num_requests_running")},
            unit="short",
        ),
        Panel(
            title="Partition: SMs of prefill and decode",
            queries={
                "{{unit}} prefill": _of_units("muxfleet_unit_sms", ', phase="prefill"', model=""),
                "{{unit}} decode": _of_units("muxfleet_unit_sms", ', phase="decode"', model=""),
            },
            unit="short",
            description="Cores on a CPU.",
        ),
        Panel(
            title="Bubbles",
            queries={
                "{{unit}} prefill": _of_units("muxfleet_lane_bubble_share", ', phase="prefill"', model=""),
                "{{unit}} decode": _of_units("muxfleet_lane_bubble_share", ', phase="decode"', model=""),
            },
            unit="percentunit",
            description="Share of time that a lane idled although there was work.",
        ),
        Panel(
            title="Age of units' reports",
            queries={"{{unit}}": _of_units("muxfleet_unit_report_age_seconds", model="")},
            unit="s",
        ),
        Panel(
            title="Age of the gateways' view",
            queries={"{{gateway}}": 'max by (gateway) (muxfleet_telemetry_age_seconds{job=~"$job"})'},
            unit="s",
        ),
        Panel(
            title="Gateways by version",
            queries={"{{version}}": 'sum by (version) (muxfleet_build_info{job=~"$job"})'},
            unit="short",
        ),
    ]
    return Dashboard(
        name="units",
        title="muxfleet / units",
        rows={"Memory": memory, "Work": work, "Multiplexing": _multiplexing_row()},
    )


def _multiplexing_row() -> Sequence[Panel]:
    """How well models and phases share their units."""
    held, capacity = (
        f'max by (model, gateway) (muxfleet_ledger_blocks{{job=~"$job", model=~"$model", state="{state}"}})'
        for state in ("held", "capacity")
    )
    return [
        Panel(
            title="Headroom of decode",
            queries={"{{unit}}": _of_units("muxfleet_decode_headroom_ratio", model="")},
            unit="percentunit",
            description="Share of the tightest TBT target that decode steps leave.",
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
        Panel(
            title="Fairness gap",
            queries={"{{unit}}": _of_units("muxfleet_unit_fairness_gap", model="")},
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
                "{{model}} on {{unit}}": _of_units("muxfleet_prefix_hit_ratio"),
                "{{model}} routed": _rate("muxfleet_routed_prefix_tokens_total", "model")
                + " / "
                + _rate("muxfleet_prompt_tokens_total", "model"),
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
            queries={"{{unit}}": _of_units("muxfleet_unit_partitioned", model="")},
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


def dashboard_json(dashboard: Dashboard) -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in dashboard.rows.items():
        panels.append(_row(title, len(panels) + 1, top))
        top += 1
        for i, panel in enumerate(row):
            place = {"x": i % _COLUMNS * _WIDTH, "y": top + i // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_timeseries(panel, len(panels) + 1, place))
        top += -(-len(row) // _COLUMNS) * _HEIGHT
    model = {
        "uid": f"muxfleet-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["muxfleet", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource_variable(), _variable("job"), _variable("model")]},
        "annotations": {"list": [_annotation(title, kinds, color) for title, kinds, color in _ANNOTATIONS]},
        "panels": panels,
    }
    return json.dumps(model, indent=1) + "\n"


def _annotation(title: str, kinds: str, color: str) -> dict[str, Any]:
    counter = f'muxfleet_fleet_events_total{{job=~"$job", kind=~"{kinds}"}}'
    return {
        "name": title,
        "enable": True,
        "iconColor": color,
        "datasource": dict(_SOURCE),
        "target": {
            "refId": "annotation",
            "datasource": dict(_SOURCE),
            "expr": f"max by (kind) (increase({counter}[$__rate_interval])) > 0",
            "interval": "30s",
        },
        "titleFormat": "{{kind}}",
    }


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _WIDTH * _COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _timeseries(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": dict(_SOURCE),
        "gridPos": dict(place),
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"stacking": stacking, "fillOpacity": 10}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": dict(_SOURCE), "expr": query, "legendFormat": legend}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "current": {}}


def _variable(label: str) -> dict[str, Any]:
    metric = "muxfleet_build_info" if label == "job" else 'muxfleet_requests_total{job=~"$job", model!=""}'
    return {
        "name": label,
        "type": "query",
        "label": "release" if label == "job" else label,
        "datasource": dict(_SOURCE),
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
