"""What the chart's NetworkPolicy lets pods reach."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, objects_of, of_kind

pytestmark = pytest.mark.k8s


def egress(helm: Helm, chart: Path, **values: Any) -> list[dict[str, Any]]:
    """With an upgrade strategy that asks no API server: test_network_reach.py has the other."""
    base = {
        "fleet": {"models": [{"id": "a", "source": "org/a"}]},
        "networkPolicy": {"enabled": True},
        "upgrade": {"strategy": "NewCluster"},
    }
    outcome = helm.template(chart, overrides=base | values)
    assert outcome.code == 0, outcome.errors
    (policy,) = of_kind(objects_of(outcome.output), "NetworkPolicy")
    return list(policy["spec"]["egress"])


def ports_to_anywhere(rules: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(port["protocol"], port["port"]) for rule in rules if "to" not in rule for port in rule["ports"]}


def test_egress__by_default__names_dns_on_the_ports_of_services_and_of_pods(helm: Helm, chart: Path) -> None:
    assert ports_to_anywhere(egress(helm, chart)) == {("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)}


@pytest.mark.parametrize("address", ["redis.infra.svc:6380", "rediss://redis.infra.svc:6380", "[fd00::1]:6380"])
def test_egress__with_redis__opens_its_port(helm: Helm, chart: Path, address: str) -> None:
    opened = ports_to_anywhere(egress(helm, chart, redis={"address": address})) - ports_to_anywhere(egress(helm, chart))

    assert opened == {("TCP", 6380)}


def test_egress__to_the_internet__knows_both_families_without_their_private_ranges(helm: Helm, chart: Path) -> None:
    def blocks(**policy: Any) -> dict[str, list[str]]:
        rules = egress(helm, chart, networkPolicy={"enabled": True, **policy})
        peers = [peer for rule in rules for peer in rule.get("to", [])]
        return {peer["ipBlock"]["cidr"]: peer["ipBlock"]["except"] for peer in peers if "ipBlock" in peer}

    assert blocks() == {
        "0.0.0.0/0": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
        "::/0": ["fc00::/7", "fe80::/10"],
    }
    assert blocks(allowInternet=False) == {}
