"""Builds the dashboard of a fleet as its clients see it: service, traffic, and what the control loop did about them."""

from collections.abc import Sequence

from scripts.chart.dashboards.fairness_row import fairness_row
from scripts.chart.dashboards.panels import MODEL, RELEASE, Dashboard, Panel
from scripts.chart.dashboards.promql import latency, of_models, rate


def fleet_dashboard() -> Dashboard:
    return Dashboard(
        name="fleet",
        title="muxfleet / fleet",
        variables=(RELEASE, MODEL),
        rows={"Service": _service(), "Traffic": _traffic(), "Control": _control(), "Fairness": fairness_row()},
    )


def _service() -> Sequence[Panel]:
    return [
        Panel(
            title="Requests in time",
            queries={
                "{{model}}": f"{rate('muxfleet_requests_in_time_total', 'model')}"
                f" / {rate('muxfleet_answers_total', 'model')}"
            },
            unit="percentunit",
            description="Share of finished answers whose first token and every gap were within target.",
        ),
        _attainment("ttft"),
        _attainment("tbt"),
        Panel(
            title="Generations that lost their unit",
            queries={"{{model}}": rate("muxfleet_generation_continuations_total", "model")},
            unit="short",
            description="They went on elsewhere; clients saw nothing.",
        ),
        latency("Time to first token", "muxfleet_time_to_first_token_seconds"),
        latency("Gap between outputs", "muxfleet_inter_token_latency_seconds"),
        latency("Whole request", "muxfleet_request_duration_seconds"),
    ]


def _attainment(slo: str) -> Panel:
    met = rate("muxfleet_answers_slo_met_total", "model", f', slo="{slo}"')
    return Panel(
        title=f"{slo.upper()} attainment",
        queries={"{{model}}": f"{met} / {rate('muxfleet_answers_total', 'model')}"},
        unit="percentunit",
        description="Share of finished answers within their model's target.",
    )


def _traffic() -> Sequence[Panel]:
    return [
        Panel(title="Requests", queries={"{{model}}": rate("muxfleet_requests_total", "model")}, unit="reqps"),
        Panel(
            title="Answers by status",
            queries={"{{status}}": rate("muxfleet_requests_total", "status") + " > 0"},
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Refused by admission (429)",
            queries={"{{model}}": rate("muxfleet_requests_shed_total", "model")},
            unit="reqps",
        ),
        Panel(
            title="Output tokens",
            queries={"{{model}}": rate("muxfleet_generation_tokens_total", "model")},
            unit="short",
            description="Tokens per second, counted when a generation ends.",
        ),
        Panel(
            title="Prompt tokens", queries={"{{model}}": rate("muxfleet_prompt_tokens_total", "model")}, unit="short"
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


def _control() -> Sequence[Panel]:
    """What the control loop did, and what became of requests that it could not help."""
    count, total = of_models("muxfleet_model_load_seconds_count"), of_models("muxfleet_model_load_seconds_sum")
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
            queries={"{{model}} {{phase}}": of_models("muxfleet_model_replicas", "model, phase") + " > 0"},
            unit="short",
        ),
        Panel(
            title="Mean time of a load",
            queries={"{{model}}": f"{total} / ({count} > 0)"},
            unit="s",
            description="Since the control loop started.",
        ),
        latency("Cold start", "muxfleet_cold_start_seconds"),
        Panel(
            title="Requests that no unit came for, and that failed on one",
            queries={
                "{{model}} none came": rate("muxfleet_requests_unserved_total", "model"),
                "{{model}} failed": rate("muxfleet_generations_failed_total", "model"),
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
        Panel(
            title="Batches",
            queries={
                "lines left": 'sum(muxfleet_batch_lines_left{job=~"$job"})',
                "{{outcome}} lines/s": "sum by (outcome) "
                '(rate(muxfleet_batch_lines_total{job=~"$job"}[$__rate_interval]))',
                "batches": 'sum(muxfleet_batches_running{job=~"$job"})',
            },
            unit="short",
            description="What gateways work on now; docs/batches.md.",
        ),
        latency("Wait at the gateway", "muxfleet_queue_time_seconds"),
        Panel(
            title="What units were chosen by",
            queries={
                "{{reason}}": 'sum by (reason) (rate(muxfleet_routing_decisions_total{job=~"$job"}[$__rate_interval]))'
            },
            unit="reqps",
        ),
        Panel(
            title="Tokens and generations by API key",
            queries={
                "{{key}} tokens/s": 'sum by (key) (rate(muxfleet_key_tokens_total{job=~"$job"}[$__rate_interval]))',
                "{{key}} generations/s": "sum by (key) "
                '(rate(muxfleet_key_generations_total{job=~"$job"}[$__rate_interval]))',
            },
            unit="short",
        ),
    ]
