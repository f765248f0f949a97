"""Writes the PromQL that panels of gateways have in common. Counters are each gateway's own: sums. Figures of units and
models are every gateway's: maxima.
"""

from scripts.chart.dashboards.panels import Panel


def rate(metric: str, by: str, selector: str = "") -> str:
    return f'sum by ({by}) (rate({metric}{{job=~"$job", model=~"$model"{selector}}}[$__rate_interval]))'


def latency(title: str, histogram: str) -> Panel:
    return Panel(
        title=title,
        queries={"{{model}} p50": _quantile(0.5, histogram), "{{model}} p99": _quantile(0.99, histogram)},
        unit="s",
    )


def of_models(metric: str, by: str = "model") -> str:
    return f'max by ({by}) ({metric}{{job=~"$job", model=~"$model"}})'


def of_models_on_units(metric: str, selector: str = "") -> str:
    return f'max by (model, unit) ({metric}{{job=~"$job", model=~"$model"{selector}}})'


def of_units(metric: str, selector: str = "") -> str:
    return f'max by (unit) ({metric}{{job=~"$job"{selector}}})'


def _quantile(quantile: float, histogram: str) -> str:
    return f"histogram_quantile({quantile}, {rate(f'{histogram}_bucket', 'model, le')})"
