"""New images, pools and nodes of a running fleet: `muxfleet rollout` against the stand-ins of API server and KubeRay,
or with a real API server, as the chart's service account (control_plane.py).

What it shows: which pods end when, and how many GPUs are asked for. No pod runs: what requests see of a node that goes
is shown in tests/chaos/test_fleet_changes.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from helm_runner import Helm, merged, objects_of
from kubernetes_schemas import CustomSchemas
from server_store import ServerStore, put_release
from standin_disruption import is_ready
from standin_operator import Operator
from standin_server import api_standin
from standin_store import ObjectStore

from deploy.errors import RolloutRefused, RolloutStuck
from deploy.kubernetes.api_server import ApiServer
from deploy.kubernetes.rolling_update import RollingUpdate
from deploy.kubernetes.settled_fleet import expected_units

pytestmark = pytest.mark.k8s

NAME = "fleet-muxfleet"
ACCOUNT = f"{NAME}-rollout"
GPUS = {
    "fleet": {
        "models": [{"id": "a", "source": "org/a"}],
        "pools": [
            {"name": "big", "device": "cuda", "gpu_type": "H100", "nodes": {"min": 3}, "node_labels": {"pool": "big"}}
        ],
    }
}
NEW_IMAGE = {"image": {"tag": "2"}}
REDIS = {"redis": {"address": "redis.infra.svc:6379"}}
SECOND = {"name": "small", "device": "cuda", "gpu_type": "L40S", "nodes": {"min": 1}, "node_labels": {"pool": "small"}}


@dataclass
class World:
    """A cluster with a release in it. Time is virtual: each sleep of the rolling update is a tick of the operator."""

    helm: Helm
    chart: Path
    store: ObjectStore | ServerStore
    operator: Operator
    api: ApiServer | None
    said: list[str] = field(default_factory=list)
    missing: Callable[[], str | None] = lambda: None
    now_s: float = 0.0
    ends_after: int = 10**6

    def install(self, *overrides: dict[str, Any]) -> None:
        values = GPUS
        for override in overrides:
            values = merged(values, override)
        outcome = self.helm.template(self.chart, overrides=values)
        assert outcome.code == 0, outcome.errors
        objects = objects_of(outcome.output)
        put_release(self.store, objects)
        accounts = [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"]
        if isinstance(self.store, ServerStore) and self.api is None and ACCOUNT in accounts:
            self.api = ApiServer(self.store.account_client(ACCOUNT), "llm")

    def roll(self) -> None:
        def sleep(seconds: float) -> None:
            self.ends_after -= 1
            if self.ends_after == 0:
                raise KeyboardInterrupt
            self.now_s += seconds
            self.operator.tick()
            if isinstance(self.store, ServerStore):
                self.store.wait_for_budgets()

        assert self.api is not None
        RollingUpdate(
            self.api,
            NAME,
            revision=None,
            what_is_missing=lambda _: self.missing(),
            say=self.said.append,
            clock=lambda: self.now_s,
            sleep=sleep,
            timeout_s=100.0,
        ).run()

    def images(self, group: str) -> list[str]:
        return sorted(p["spec"]["containers"][0]["image"] for p in self.operator.pods(group))

    def clusters(self) -> list[str]:
        return [name for kind, name in self.store.contents() if kind == "RayCluster"]

    def uids(self, group: str) -> set[str]:
        return {p["metadata"]["uid"] for p in self.operator.pods(group)}


@pytest.fixture
def world(helm4: Helm, chart: Path, custom_schemas: CustomSchemas, server_store: ServerStore | None) -> Iterator[World]:
    nodes = {f"gpu-{i}": 1 for i in range(4)} | {"cpu": 0}
    if server_store is not None:
        yield World(helm4, chart, server_store, Operator(server_store, nodes), None)
        return
    store = ObjectStore(custom_schemas)
    with api_standin(store) as address, httpx.Client(base_url=address) as client:
        yield World(helm4, chart, store, Operator(store, nodes), ApiServer(client, "llm"))


def running(world: World, *overrides: dict[str, Any]) -> list[str]:
    world.install(*overrides)
    world.operator.settle()
    assert len([p for p in world.operator.pods() if is_ready(p)]) == 4
    world.operator.measure_anew()
    return world.clusters()


def test_new_image__by_another_cluster__asks_for_the_gpus_twice(world: World) -> None:
    """The stand-in itself: what the rolling update is there to avoid."""
    new_cluster = {"upgrade": {"strategy": "NewCluster"}}
    before = running(world, new_cluster)

    world.install(new_cluster, NEW_IMAGE)
    world.operator.settle()

    assert world.operator.most_gpus == 6
    assert world.clusters() != before
    assert world.images("big") == ["muxfleet:0.1.0"] * 3 + ["muxfleet:2"] * 3, "two of them find no node"


def test_new_image__rolling__pods_go_one_by_one_and_no_gpu_is_asked_for_twice(world: World) -> None:
    before = running(world)

    world.install(NEW_IMAGE)
    world.operator.settle()
    assert world.images("big") == ["muxfleet:0.1.0"] * 3, "KubeRay leaves the cluster alone"
    world.roll()

    assert world.images("big") == ["muxfleet:2"] * 3
    assert world.operator.most_gpus == 3
    assert world.operator.fewest_ready == 2
    assert world.clusters() == before
    assert world.said[-1] == f"{NAME}: all pods are as it says"


def test_rolling__fleet_not_whole__no_pod_goes(world: World) -> None:
    running(world)
    world.install(NEW_IMAGE)
    loading = iter(["model a on unit big-1 is loading"] * 20)
    world.missing = lambda: next(loading, None)
    seen: list[int] = []
    world.said = type(
        "Said", (list,), {"append": lambda _, told: seen.append(len(list(loading))) if "drains" in told else None}
    )()

    world.roll()

    assert seen[0] == 0, "a pod went before the model was loaded"
    assert world.images("big") == ["muxfleet:2"] * 3


def test_rolling__stopped_in_the_middle__another_one_goes_on(world: World) -> None:
    running(world)
    world.install(NEW_IMAGE)
    world.ends_after = 8
    with pytest.raises(KeyboardInterrupt):
        world.roll()
    done = [
        p["metadata"]["uid"] for p in world.operator.pods("big") if p["spec"]["containers"][0]["image"] == "muxfleet:2"
    ]
    assert 0 < len(done) < 3

    world.ends_after = 10**6
    world.roll()

    assert world.images("big") == ["muxfleet:2"] * 3
    assert set(done) <= world.uids("big"), "what was replaced is not replaced again"
    assert world.operator.fewest_ready == 2


def test_rolling__image_that_does_not_run__stops_at_the_first_pod_and_the_next_image_mends_it(world: World) -> None:
    running(world)
    world.operator.broken = frozenset({"muxfleet:2"})
    world.install(NEW_IMAGE)

    with pytest.raises(RolloutStuck, match=r"waiting for pod .* to be ready; the other pods serve on"):
        world.roll()
    assert world.images("big") == ["muxfleet:0.1.0"] * 2 + ["muxfleet:2"]

    world.install({"image": {"tag": "3"}})
    world.roll()

    assert world.images("big") == ["muxfleet:3"] * 3
    assert world.operator.fewest_ready == 2


def test_rolling__pod_lost_meanwhile__waits_for_it(world: World) -> None:
    running(world)
    world.install(NEW_IMAGE)
    lost = world.operator.pods("big")[2]["metadata"]["name"]
    world.store.delete(("v1", "pods", "llm", lost))

    world.roll()

    assert world.images("big") == ["muxfleet:2"] * 3
    assert world.operator.fewest_ready == 2


@pytest.mark.parametrize(("redis", "image"), [({}, "muxfleet:0.1.0"), (REDIS, "muxfleet:2")], ids=["without", "with"])
def test_rolling__head__goes_last_and_only_with_redis(world: World, redis: dict[str, Any], image: str) -> None:
    running(world, redis)
    world.install(redis, NEW_IMAGE)

    world.roll()

    assert world.images("headgroup") == [image]
    assert world.images("big") == ["muxfleet:2"] * 3
    drained = [told for told in world.said if "drains" in told]
    assert ["headgroup" in told for told in drained] == [False] * 3 + ([True] if redis else [])
    assert any("head keeps its pod" in told for told in world.said) is not bool(redis)


def test_head__lost_with_redis__workers_stay_and_it_comes_back(world: World) -> None:
    running(world, REDIS)
    workers = world.uids("big")
    (head,) = world.operator.pods("headgroup")

    world.store.delete(("v1", "pods", "llm", head["metadata"]["name"]))
    world.operator.settle()

    assert world.uids("big") == workers
    assert world.uids("headgroup") != {head["metadata"]["uid"]}
    assert world.operator.fewest_ready == 3


@pytest.mark.parametrize("place", ["before", "behind"])
def test_second_pool__added_and_removed__the_first_ones_pods_stay(world: World, place: str) -> None:
    before, workers = running(world), world.uids("big")
    first = GPUS["fleet"]["pools"][0]
    pools = [SECOND, first] if place == "before" else [first, SECOND]

    world.install({"fleet": {"pools": pools}})
    world.roll()
    assert len(world.uids("small")) == 1
    assert world.uids("big") == workers

    world.install()
    world.roll()

    assert world.uids("small") == set()
    assert world.uids("big") == workers
    assert world.clusters() == before
    assert world.operator.fewest_ready == 3


def test_nodes__more_and_fewer__reach_the_running_cluster(world: World) -> None:
    """KubeRay does not take numbers of replicas over into a running cluster."""
    running(world)
    four = {"fleet": {"pools": [GPUS["fleet"]["pools"][0] | {"nodes": {"min": 4}}]}}
    workers = world.uids("big")
    world.install(four)
    world.operator.settle()
    assert world.uids("big") == workers

    world.roll()
    assert len(world.uids("big")) == 4
    assert workers < world.uids("big")

    world.install()
    world.roll()
    assert len(world.uids("big")) == 3


def test_gateway_setting__changed__no_pod_goes(world: World) -> None:
    running(world)
    pods = world.uids("big") | world.uids("headgroup")

    world.install({"fleet": {"gateway": {"hold_s": 5.0, "replicas": 4}}})
    world.roll()

    assert world.uids("big") | world.uids("headgroup") == pods


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"rayVersion": "2.61.0"}, "rayVersion changed"),
        (REDIS, "gcsFaultToleranceOptions changed"),
        ({"autoscaling": {"enabled": True}}, "enableInTreeAutoscaling changed"),
        ({"fleet": {"gateway": {"port": 8001}}}, "fleet.gateway.port changed"),
        ({"fleet": {"gateway": {"proxy": "python"}}}, "fleet.gateway.proxy changed"),
    ],
    ids=["ray", "redis", "autoscaler", "port", "proxy"],
)
def test_rolling__change_that_only_another_cluster_takes__is_refused_before_any_pod_goes(
    world: World, change: dict[str, Any], keys: str
) -> None:
    running(world)
    pods = world.uids("big")
    world.install(change, NEW_IMAGE)

    with pytest.raises(RolloutRefused, match=rf"{keys}; a running Ray cluster cannot .* upgrade.strategy: NewCluster"):
        world.roll()

    world.operator.settle()
    assert world.uids("big") == pods


def test_service__changed__reaches_the_one_that_kuberay_made(world: World) -> None:
    """KubeRay itself makes it once, and anew with another cluster only."""
    before = running(world, {"service": {"annotations": {"a": "1", "b": "1"}}})
    pods, key = world.uids("big"), ("v1", "services", "llm", f"{NAME}-serve-svc")
    world.store.merge(key, {"metadata": {"annotations": {"cloud": "of its own"}}}, is_dry=False)
    ranges = ["192.0.2.0/24"]
    change = {"type": "LoadBalancer", "annotations": {"a": "2", "b": "1"}, "spec": {"loadBalancerSourceRanges": ranges}}
    world.install({"service": change})
    world.operator.settle()
    made = world.store.get(key)
    assert made["spec"]["type"] == "ClusterIP"

    world.roll()
    world.operator.settle()

    service = world.store.get(key)
    spec = service["spec"]
    if isinstance(world.store, ServerStore):  # which gives a balanced Service what it needs
        del spec["externalTrafficPolicy"]
        for port in spec["ports"]:
            del port["nodePort"]
    assert spec == made["spec"] | {"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}
    assert service["metadata"]["annotations"] == {"a": "2", "b": "1", "cloud": "of its own"}
    assert (world.uids("big"), world.clusters()) == (pods, before)
    told = ["type", "loadBalancerSourceRanges"]
    if isinstance(world.store, ServerStore):
        told.sort()  # as that keeps what it is given
    assert world.said[0] == f"{NAME}-serve-svc: takes annotations a, {', '.join(told)}"
    written = service["metadata"]["resourceVersion"]
    world.roll()
    assert world.store.get(key)["metadata"]["resourceVersion"] == written, "nothing is written twice"


def test_rolling__serve_config_that_the_head_does_not_take__is_refused_before_any_pod_goes(world: World) -> None:
    running(world)
    pods = world.uids("big")
    world.install(NEW_IMAGE)
    key = ("ray.io/v1", "rayservices", "llm", NAME)
    status = world.store.get(key)["status"]
    status["activeServiceStatus"]["applicationStatuses"] = {
        "gateway": {"status": "DEPLOY_FAILED", "message": "extra key"}
    }
    world.store.set_status(key, status)

    with pytest.raises(RolloutRefused, match="Serve does not take application gateway: extra key"):
        world.roll()

    assert world.uids("big") == pods


def test_rolling__no_cluster_yet__has_nothing_to_do(world: World) -> None:
    world.install()

    world.roll()

    assert world.said == ["no Ray cluster runs yet; KubeRay makes it as the RayService says"]


def test_expected_units__of_a_rendered_service__are_those_of_all_pools(world: World) -> None:
    world.install({"fleet": {"pools": [GPUS["fleet"]["pools"][0] | {"gpus_per_node": 8}, SECOND]}})

    assert world.api is not None
    assert expected_units(world.api.ray_service(NAME)) == 25
