"""Who reaches whom once the chart's NetworkPolicy is in force, by the rules that network plugins follow."""

from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, objects_of, of_kind, ray_service
from network_reach import End, is_open

pytestmark = pytest.mark.k8s

MODEL = {"id": "a", "source": "org/a"}
APPS, STRANGER = End(namespace="apps"), End(namespace="other")
OPERATOR = End(namespace="kuberay", labels={"app.kubernetes.io/name": "kuberay-operator"})
PROMETHEUS = End(namespace="monitoring", labels={"app.kubernetes.io/name": "prometheus"})
DNS = End(namespace="kube-system", labels={"k8s-app": "kube-dns"})
REDIS, HUB, HUB6 = End(namespace="infra"), End(address="140.82.112.3"), End(address="2a04:4e42::223")
API_SERVER, INTRANET, ULA = End(address="10.96.0.1"), End(address="192.168.4.4"), End(address="fd12::1")


class Fleet:
    def __init__(self, helm: Helm, chart: Path, **values: Any) -> None:
        policy = {
            "enabled": True,
            "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}],
            "operatorNamespace": "kuberay",
            "monitoringNamespace": "monitoring",
            **values.pop("networkPolicy", {}),
        }
        overrides = {"fleet": {"models": [MODEL]}, "networkPolicy": policy, **values}
        outcome = helm.template(chart, overrides=overrides)
        assert outcome.code == 0, outcome.errors
        objects = objects_of(outcome.output)
        self.policies = [o | {"metadata": {"namespace": "llm"}} for o in of_kind(objects, "NetworkPolicy")]
        cluster = ray_service(objects)["spec"]["rayClusterConfig"]
        pods = {"head": cluster["headGroupSpec"], "worker": cluster["workerGroupSpecs"][0]}
        for job in of_kind(objects, "Job"):
            pods["rollout"] = job["spec"]
        self.ends = {
            name: End(namespace="llm", labels=pod["template"]["metadata"]["labels"]) for name, pod in pods.items()
        }
        (test,) = of_kind(objects, "Pod")
        self.ends["helm test"] = End(namespace="llm", labels=test["metadata"]["labels"])

    def reaches(self, start: End | str, end: End | str, port: int, protocol: str = "TCP") -> bool:
        one, other = (self.ends[e] if isinstance(e, str) else e for e in (start, end))
        return is_open(self.policies, one, other, port, protocol)


@pytest.fixture(scope="module")
def fleet(helm4: Helm, chart: Path) -> Fleet:
    return Fleet(helm4, chart, redis={"address": "redis.infra.svc:6380"})


OPEN: list[tuple[Any, Any, int, str]] = [
    (APPS, "worker", 8000, "TCP"),
    (PROMETHEUS, "head", 8000, "TCP"),
    (PROMETHEUS, "worker", 8080, "TCP"),
    (OPERATOR, "head", 8265, "TCP"),
    (OPERATOR, "worker", 52365, "TCP"),
    ("head", "worker", 31337, "TCP"),
    ("worker", "head", 6379, "TCP"),
    ("worker", "worker", 40001, "TCP"),
    ("rollout", "worker", 8000, "TCP"),
    ("helm test", "worker", 8000, "TCP"),
    ("worker", DNS, 53, "UDP"),
    ("worker", DNS, 5353, "UDP"),
    ("head", REDIS, 6380, "TCP"),
    ("worker", HUB, 443, "TCP"),
    ("worker", HUB6, 443, "TCP"),
    ("rollout", API_SERVER, 443, "TCP"),
    ("rollout", API_SERVER, 6443, "TCP"),
]
CLOSED: list[tuple[Any, Any, int, str]] = [
    (STRANGER, "worker", 8000, "TCP"),
    (APPS, "head", 8265, "TCP"),
    (APPS, "head", 6379, "TCP"),
    (APPS, "head", 10001, "TCP"),
    (APPS, "worker", 8080, "TCP"),
    (PROMETHEUS, "head", 8265, "TCP"),
    (OPERATOR, "head", 6379, "TCP"),
    (End(namespace="apps", labels=PROMETHEUS.labels), "worker", 8080, "TCP"),
    ("worker", REDIS, 6379, "TCP"),
    ("worker", INTRANET, 80, "TCP"),
    ("worker", ULA, 8443, "TCP"),
    ("worker", HUB, 22, "TCP"),
    ("worker", STRANGER, 8000, "TCP"),
]


@pytest.mark.parametrize(("start", "end", "port", "protocol"), OPEN, ids=str)
def test_reach__what_the_fleet_needs__is_open(fleet: Fleet, start: Any, end: Any, port: int, protocol: str) -> None:
    assert fleet.reaches(start, end, port, protocol)


@pytest.mark.parametrize(("start", "end", "port", "protocol"), CLOSED, ids=str)
def test_reach__everything_else__is_closed(fleet: Fleet, start: Any, end: Any, port: int, protocol: str) -> None:
    assert not fleet.reaches(start, end, port, protocol)


def test_reach__api_server__only_for_those_who_ask_it(helm4: Helm, chart: Path) -> None:
    quiet = Fleet(helm4, chart, upgrade={"strategy": "NewCluster"}, networkPolicy={"allowInternet": False})

    assert not quiet.reaches("worker", API_SERVER, 443)
    assert not quiet.reaches("worker", HUB, 443)
    assert quiet.reaches("worker", DNS, 53, "UDP")


def test_reach__without_a_policy__all_is_open(helm4: Helm, chart: Path) -> None:
    """The evaluation itself: it says no only where a policy does."""
    open_fleet = Fleet(helm4, chart, networkPolicy={"enabled": False})

    assert open_fleet.reaches(STRANGER, "head", 6379)
