"""Panels that say how evenly the fleet serves its API keys and its models.

Jain's index of n shares, J = (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe 1984), is 1 where all get the same and 1/n
where one gets all. Keys all weigh the same.
"""

from collections.abc import Sequence

from scripts.chart.dashboards.panels import Panel
from scripts.chart.dashboards.promql import rate

_TOKENS = 'sum by (key) (rate(muxfleet_key_tokens_total{job=~"$job"}[$__rate_interval]))'


def fairness_row() -> Sequence[Panel]:
    in_time = f"({rate('muxfleet_requests_in_time_total', 'model')} / {rate('muxfleet_answers_total', 'model')})"
    return [
        Panel(
            title="Share of tokens by API key",
            queries={"{{key}}": f"({_TOKENS} > 0) / scalar(sum({_TOKENS}))"},
            unit="percentunit",
            is_stacked=True,
            description="Prompts and answers, of the keys that ask for something.",
        ),
        Panel(
            title="Jain's index of API keys",
            queries={"tokens": _jain(f"({_TOKENS} > 0)")},
            unit="percentunit",
            description="Of tokens: 1 where all keys that ask get the same, 1/n where one of n gets all. A key that "
            "asks for little lowers it without being wronged: look at the shares beside it.",
        ),
        Panel(
            title="Jain's index of models",
            queries={"requests in time": _jain(f"({in_time} >= 0)")},
            unit="percentunit",
            description="Of the share of finished answers that were in time: low where some models are late and "
            "others are not.",
        ),
    ]


def _jain(shares: str) -> str:
    return f"sum({shares}) ^ 2 / (count({shares}) * sum({shares} ^ 2))"
