"""Writes a dashboard as Grafana's JSON model: panels three abreast below the title of their row."""

import json
from collections.abc import Mapping
from typing import Any

from scripts.chart.dashboards.panels import Dashboard, Panel, Variable

_SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_ANNOTATIONS = (
    ("Losses", "unit_lost|unit_restarted|controller_started|serve_silent|out|model_failed", "red"),
    ("Plans and moves", "plan|move", "blue"),
)


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
    marks = _ANNOTATIONS if dashboard.is_annotated else ()
    model = {
        "uid": f"muxfleet-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["muxfleet", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource_variable(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_annotation(title, kinds, color) for title, kinds, color in marks]},
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
    least = {} if panel.may_be_negative else {"min": 0}
    stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": dict(_SOURCE),
        "gridPos": dict(place),
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **least, "custom": {"stacking": stacking, "fillOpacity": 10}},
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


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "label": variable.shown_as,
        "datasource": dict(_SOURCE),
        "query": {"query": f"label_values({variable.of_metric}, {variable.label})", "refId": variable.name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
