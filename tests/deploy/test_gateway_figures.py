import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from deploy.inspection.gateway_figures import RecentFigures, quantile, reading

INF = float("inf")


class Gateways:
    """Two of them, as a merged exposition tells of them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "gateway")
        self.ttft = Histogram(
            "muxfleet_time_to_first_token_seconds", "t", labels, buckets=(0.1, 0.2, 0.4), registry=self.registry
        )
        self.gap = Histogram(
            "muxfleet_inter_token_latency_seconds", "t", labels, buckets=(0.01, 0.02), registry=self.registry
        )
        self.queued = Gauge("muxfleet_generations_queued", "t", labels, registry=self.registry)

    def text(self) -> str:
        return str(generate_latest(self.registry).decode())


def test_figures__two_gateways__are_summed() -> None:
    gateways = Gateways()
    for gateway in "ab":
        gateways.queued.labels("m", gateway).set(3)
        for _ in range(50):
            gateways.ttft.labels("m", gateway).observe(0.15)
            gateways.gap.labels("m", gateway).observe(0.005)

    found = RecentFigures().add(reading(gateways.text(), 0.0))["m"]

    assert found.queued == 6
    assert found.ttft_p50_s == pytest.approx(0.15)  # in the middle of its bucket
    assert found.tbt_p99_s == pytest.approx(0.0099)


def test_figures__window_has_passed__what_was_before_counts_no_more() -> None:
    gateways = Gateways()
    recent = RecentFigures(window_s=60.0)
    for second in range(200):
        gateways.ttft.labels("m", "a").observe(0.05 if second < 100 else 0.3)
        found = recent.add(reading(gateways.text(), float(second)))["m"]

    assert found.ttft_p50_s == pytest.approx(0.3)


def test_figures__no_traffic_lately__are_none() -> None:
    gateways = Gateways()
    gateways.ttft.labels("m", "a").observe(0.05)
    recent = RecentFigures(window_s=10.0)
    for second in range(30):
        found = recent.add(reading(gateways.text(), float(second)))["m"]

    assert (found.ttft_p50_s, found.tbt_p50_s) == (None, None)


def test_figures__gateway_was_replaced__counts_what_the_new_one_saw() -> None:
    before, after = Gateways(), Gateways()
    recent = RecentFigures(window_s=1.0)
    for _ in range(9):
        before.ttft.labels("m", "a").observe(0.05)
    recent.add(reading(before.text(), 0.0))
    after.ttft.labels("m", "a").observe(0.3)

    assert recent.add(reading(after.text(), 2.0))["m"].ttft_p50_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, INF: 0.0}, 0.5, None),
        ({1.0: 10.0, 2.0: 20.0, INF: 20.0}, 0.75, 1.5),
        ({1.0: 0.0, 2.0: 0.0, INF: 5.0}, 0.5, 2.0),
        ({1.0: 4.0, INF: 4.0}, 1.0, 1.0),
    ],
)
def test_quantile__buckets__as_prometheus(buckets: dict[float, float], share: float, expected: float | None) -> None:
    assert quantile(buckets, share) == expected
