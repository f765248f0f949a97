"""Broken values, each with the message that a user sees."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helm_runner import CHART, Helm, merged

pytestmark = pytest.mark.k8s

MODEL = {"id": "a", "source": "org/a"}
FLEET = {"fleet": {"models": [MODEL]}}
INCREMENTAL = {
    "upgrade": {"strategy": "NewClusterWithIncrementalUpgrade", "gatewayClassName": "istio"},
    "autoscaling": {"enabled": True},
}


def pool(**keys: Any) -> dict[str, Any]:
    return {"fleet": {"pools": [{"name": "p", **keys}]}}


# What the chart's own checks say, word for word.
CHECKED: Mapping[str, tuple[dict[str, Any], str]] = {
    "scrapes too rare for rules": (
        {"monitoring": {"podMonitor": {"enabled": True, "interval": "3m"}, "rules": {"enabled": True}}},
        'muxfleet: monitoring.podMonitor.interval = "3m": rules look at the last five minutes, in which there must be '
        "two scrapes, or alerts never fire; write 2m at most, or switch monitoring.rules.enabled off",
    ),
    "model twice": (
        {"fleet": {"models": [MODEL, MODEL]}},
        'muxfleet: fleet.models[1].id = "a": also fleet.models[0].id; choose another',
    ),
    "replicas upside down": (
        {"fleet": {"models": [MODEL | {"replicas": {"min": 3, "max": 2}}]}},
        "muxfleet: fleet.models[0].replicas.max = 2: smaller than min (3); raise it or lower min",
    ),
    "source in a home": (
        {"fleet": {"models": [{"id": "a", "source": "~/a"}]}},
        'muxfleet: fleet.models[0].source = "~/a": pods have no home of yours; '
        "write a Hugging Face id, or a folder below modelCache.mountPath",
    ),
    "pool twice": (
        {"fleet": {"pools": [{"name": "p", "node_labels": {"a": "b"}}, {"name": "p", "node_labels": {"a": "c"}}]}},
        'muxfleet: fleet.pools[1].name = "p": also fleet.pools[0].name; choose another',
    ),
    "pools without labels": (
        {"fleet": {"pools": [{"name": "p", "node_labels": {"a": "b"}}, {"name": "q"}]}},
        "muxfleet: fleet.pools[1].node_labels = {}: with several pools each needs its own, so that its units run "
        "on its nodes; for example {muxfleet.io/pool: q}",
    ),
    "pool for prompts alone": (
        pool(role="prefill"),
        'muxfleet: fleet.pools[0].role = "prefill": no pool has role decode; give one that role, or remove this one',
    ),
    "pool without a role beside others": (
        {
            "fleet": {
                "pools": [
                    {"name": "p", "role": "decode", "node_labels": {"a": "b"}},
                    {"name": "q", "role": "prefill", "node_labels": {"a": "c"}},
                    {"name": "r"},
                ]
            }
        },
        'muxfleet: fleet.pools[2].role = "": other pools have a role, and this one has none; set prefill or decode '
        "here, or remove theirs",
    ),
    "roles of ranks": (
        pool(role="decode", mesh_gpus=2),
        'muxfleet: fleet.pools[0].role = "decode": KV of these units cannot be moved; only that of backend native on '
        "cpu with mesh_gpus 1; remove it",
    ),
    "mesh does not divide": (
        pool(device="simulated", gpus_per_node=6, mesh_gpus=4),
        "muxfleet: fleet.pools[0].mesh_gpus = 4: must divide gpus_per_node (6)",
    ),
    "scaling of a pool that cannot": (
        pool(scaling={"max_step": 1}),
        "this pool always has 1 nodes; set nodes.max above nodes.min, or remove it",
    ),
    "two prices": (
        pool(
            nodes={"min": 1, "max": 2},
            scaling={"cost_per_hour": 30, "spot": {"price_per_hour": 9, "lost_every_s": 3600}},
        )
        | {"autoscaling": {"enabled": True}},
        "muxfleet: fleet.pools[0].scaling.cost_per_hour = 30: "
        "spot.price_per_hour says what a node costs; remove this, or spot",
    ),
    "schedule that cannot be kept": (
        pool(nodes={"min": 1, "max": 2}, scaling={"schedule": [{"nodes": 3}]}) | {"autoscaling": {"enabled": True}},
        "muxfleet: fleet.pools[0].scaling.schedule[0].nodes = 3: more than nodes.max (2); lower it or raise nodes.max",
    ),
    "nodes upside down": (
        pool(nodes={"min": 3, "max": 2}),
        "muxfleet: fleet.pools[0].nodes.max = 2: smaller than min (3); raise it or lower min",
    ),
    "cpu with GPUs": (
        pool(gpus_per_node=2, mesh_gpus=2),
        "muxfleet: fleet.pools[0].gpus_per_node = 2: a cpu pool has one device per node; remove it",
    ),
    "cores that ranks cannot share": (
        pool(cores=3, mesh_gpus=2),
        "muxfleet: fleet.pools[0].cores = 3: each of mesh_gpus (2) ranks has as many; set a multiple of it",
    ),
    "cpu with a GPU type": (
        pool(gpu_type="H100"),
        'muxfleet: fleet.pools[0].gpu_type = "H100": a cpu pool has no GPUs; remove it',
    ),
    "keys that nobody reads": (
        {"apiKeys": {"existingSecret": "keys"}},
        'muxfleet: apiKeys.existingSecret = "keys": the gateways do not read it; '
        "set fleet.gateway.api_keys to /etc/muxfleet/api-keys/KEY, with KEY of the Secret",
    ),
    "unknown GPU": (
        pool(device="simulated", gpu_type="H1000"),
        'muxfleet: fleet.pools[0].gpu_type = "H1000": unknown device; known: A100-80G, ',
    ),
    "cores on a GPU": (
        pool(device="simulated", cores=4),
        "muxfleet: fleet.pools[0].cores = 4: only for cpu pools; remove it",
    ),
    "KV above memory": (
        pool(kv_memory="4GiB", device_memory="2GiB"),
        "muxfleet: fleet.pools[0].kv_memory = 4294967296: leaves no device_memory for weights; lower it",
    ),
    "unknown unit of a size": (
        pool(kv_memory="4 gigs"),
        'muxfleet: fleet.pools[0].kv_memory = "4 gigs": unknown unit "gigs"; write a size such as 256MiB',
    ),
    "override of no pool": (
        {"pools": {"h100": {"nodeSelector": {"a": "b"}}}},
        'muxfleet: pools = "h100": no fleet pool has this name; known: default',
    ),
    "gateway on loopback": (
        {"fleet": {"gateway": {"host": "127.0.0.1"}}},
        'muxfleet: fleet.gateway.host = "127.0.0.1": other pods cannot reach it; leave it out, or write 0.0.0.0',
    ),
    "gateway on Ray's port": (
        {"fleet": {"gateway": {"port": 8265}}},
        "muxfleet: fleet.gateway.port = 8265: Ray uses this port in its pods; choose another, for example 8000",
    ),
    "incremental without autoscaling": (
        {"upgrade": INCREMENTAL["upgrade"]},
        'muxfleet: upgrade.strategy = "NewClusterWithIncrementalUpgrade": '
        "KubeRay needs autoscaling.enabled: true for it",
    ),
    "incremental without a class": (
        merged(INCREMENTAL, {"upgrade": {"gatewayClassName": ""}}),
        'muxfleet: upgrade.gatewayClassName = "": '
        "name the class of your Gateway API controller (kubectl get gatewayclass)",
    ),
    "step above surge": (
        merged(INCREMENTAL, {"upgrade": {"stepSizePercent": 50, "maxSurgePercent": 20}}),
        "muxfleet: upgrade.stepSizePercent = 50: above maxSurgePercent (20); lower it",
    ),
    "class without incremental": (
        {"upgrade": {"gatewayClassName": "istio"}},
        'muxfleet: upgrade.gatewayClassName = "istio": only for upgrade.strategy: NewClusterWithIncrementalUpgrade; '
        "remove it or change the strategy",
    ),
    "ingress with incremental": (
        merged(INCREMENTAL, {"ingress": {"enabled": True}}),
        "muxfleet: ingress.enabled = true: with the incremental upgrade KubeRay makes the Gateway "
        "fleet-muxfleet-gateway with a route of its own and changes Services under "
        "it; use that Gateway, or another upgrade.strategy",
    ),
    "route with incremental": (
        merged(INCREMENTAL, {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}),
        "muxfleet: httpRoute.enabled = true: with the incremental upgrade KubeRay makes the Gateway",
    ),
    "load balancer with incremental": (
        merged(INCREMENTAL, {"service": {"type": "LoadBalancer"}}),
        'muxfleet: service.type = "LoadBalancer": KubeRay ignores it with the incremental upgrade; '
        "use the Gateway fleet-muxfleet-gateway",
    ),
    "spec of the Service with incremental": (
        merged(INCREMENTAL, {"service": {"spec": {"ipFamilyPolicy": "PreferDualStack"}}}),
        'muxfleet: service.spec = {"ipFamilyPolicy":"PreferDualStack"}: KubeRay ignores it with the incremental '
        "upgrade; use the Gateway fleet-muxfleet-gateway",
    ),
    "type of the Service in its spec": (
        {"service": {"spec": {"type": "NodePort"}}},
        'muxfleet: service.spec.type = "NodePort": write it as service.type',
    ),
    "selector of the Service": (
        {"service": {"spec": {"selector": {"a": "b"}}}},
        'muxfleet: service.spec.selector = {"a":"b"}: KubeRay sets it; remove it, or make a Service in extraObjects',
    ),
    "two ways in": (
        {"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
        "muxfleet: httpRoute.enabled = true: ingress.enabled is true too; choose one way in",
    ),
    "route to no gateway": (
        {"httpRoute": {"enabled": True}},
        "muxfleet: httpRoute.parentRefs = []: name the Gateway that takes the route, "
        "for example [{name: public, namespace: infra}]",
    ),
    "redis secret without redis": (
        {"redis": {"existingSecret": "s"}},
        'muxfleet: redis.existingSecret = "s": there is no redis.address; set it or remove the Secret',
    ),
    "token secret without tokens": (
        {"rayAuth": {"mode": "disabled", "existingSecret": "s"}},
        'muxfleet: rayAuth.existingSecret = "s": only for rayAuth.mode: token; remove it or change the mode',
    ),
    "no tokens": (
        {"rayAuth": {"mode": "disabled"}},
        'muxfleet: rayAuth.mode = "disabled": every pod that reaches the cluster could run code in it; '
        "leave it at token, or set rayAuth.allowDisabled if a network policy keeps all others out",
    ),
    "claim without a cache": (
        {"modelCache": {"existingClaim": "c"}},
        'muxfleet: modelCache.existingClaim = "c": modelCache.enabled is false; switch it on or remove the claim',
    ),
    "autoscaler without an account": (
        {"autoscaling": {"enabled": True}, "serviceAccount": {"create": False}},
        'muxfleet: serviceAccount.name = "": KubeRay gives the autoscaler\'s rights to it; '
        "name one that is there, or set serviceAccount.create",
    ),
}

# What Helm 3 and Helm 4 say of the schema: the place, and what is wrong with it.
SCHEMA: Mapping[str, tuple[dict[str, Any] | None, str, str]] = {
    "no values at all": (
        None,
        "- fleet: models is required",
        "- at '/fleet': missing property 'models'",
    ),
    "no model": (
        {"fleet": {"models": []}},
        "- fleet.models: Array must have at least 1 items",
        "- at '/fleet/models': minItems: got 0, want 1",
    ),
    "unknown key at the top": (
        {"flete": {}},
        "- (root): Additional property flete is not allowed",
        "- at '': additional properties 'flete' not allowed",
    ),
    "unknown key of a model": (
        {"fleet": {"models": [MODEL | {"slo": {"ttft": 1}}]}},
        "- fleet.models.0.slo: Additional property ttft is not allowed",
        "- at '/fleet/models/0/slo': additional properties 'ttft' not allowed",
    ),
    "unknown policy": (
        {"fleet": {"engine": {"policy": "fifo"}}},
        '- fleet.engine.policy: fleet.engine.policy must be one of the following: "adbs", "bullet", "chunked_prefill"',
        "- at '/fleet/engine/policy': value must be one of 'adbs', 'bullet', 'chunked_prefill'",
    ),
    "port as text": (
        {"fleet": {"gateway": {"port": "80"}}},
        "- fleet.gateway.port: Invalid type. Expected: integer, given: string",
        "- at '/fleet/gateway/port': got string, want integer",
    ),
    "port too high": (
        {"fleet": {"gateway": {"port": 70000}}},
        "- fleet.gateway.port: Must be less than or equal to 65535",
        "- at '/fleet/gateway/port': maximum: got 70,000, want 65,535",
    ),
    "unknown strategy": (
        {"upgrade": {"strategy": "NewCluter"}},
        '- upgrade.strategy: upgrade.strategy must be one of the following: "RollingUpdate"',
        "- at '/upgrade/strategy': value must be one of 'RollingUpdate', 'NewCluster', "
        "'NewClusterWithIncrementalUpgrade', 'None'",
    ),
    "misspelt section key": (
        {"image": {"tga": "1"}},
        "- image: Additional property tga is not allowed",
        "- at '/image': additional properties 'tga' not allowed",
    ),
    "digest that is none": (
        {"image": {"digest": "latest"}},
        "- image.digest: Does not match pattern '^(sha256:[0-9a-f]{64})?$'",
        "- at '/image/digest': 'latest' does not match pattern '^(sha256:[0-9a-f]{64})?$'",
    ),
    "class that no object can have": (
        {"head": {"runtimeClassName": "A b: {c}"}},
        "- head.runtimeClassName: Does not match pattern '^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$'",
        "- at '/head/runtimeClassName': 'A b: {c}' does not match pattern '^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$'",
    ),
    "key of a toleration": (
        {"workers": {"tolerations": [{"keyy": "a"}]}},
        "- workers.tolerations.0: Additional property keyy is not allowed",
        "- at '/workers/tolerations/0': additional properties 'keyy' not allowed",
    ),
    "item of a list that is empty": (
        {"workers": {"env": [None]}},
        "- workers.env.0: Invalid type. Expected: object, given: null",
        "- at '/workers/env/0': got null, want object",
    ),
    "path that is none": (
        {"ingress": {"enabled": True, "paths": ["/v1: x"]}},
        "- ingress.paths.0: Does not match pattern",
        "- at '/ingress/paths/0': '/v1: x' does not match pattern",
    ),
    "timeout that is none": (
        {"httpRoute": {"requestTimeout": "10 minutes"}},
        "- httpRoute.requestTimeout: Does not match pattern",
        "- at '/httpRoute/requestTimeout': '10 minutes' does not match pattern",
    ),
    "key of an affinity": (
        {"pools": {"default": {"affinity": {"nodeAffinty": {}}}}},
        "- pools.default.affinity: Additional property nodeAffinty is not allowed",
        "- at '/pools/default/affinity': additional properties 'nodeAffinty' not allowed",
    ),
    "key of a security context": (
        {"securityContext": {"privilged": True}},
        "- securityContext: Additional property privilged is not allowed",
        "- at '/securityContext': additional properties 'privilged' not allowed",
    ),
    "deadline too short": (
        {"startup": {"deadlineSeconds": 1}},
        "- startup.deadlineSeconds: Must be greater than or equal to 60",
        "- at '/startup/deadlineSeconds': minimum: got 1, want 60",
    ),
    "objective of one": (
        {"monitoring": {"rules": {"sloObjective": 1}}},
        "- monitoring.rules.sloObjective: Must be less than 1",
        "- at '/monitoring/rules/sloObjective': exclusiveMaximum: got 1, want 1",
    ),
    "enabled as text": (
        {"ingress": {"enabled": "yes"}},
        "- ingress.enabled: Invalid type. Expected: boolean, given: string",
        "- at '/ingress/enabled': got string, want boolean",
    ),
}


@pytest.mark.parametrize("case", CHECKED)
def test_checks__broken_values__name_the_value_and_the_remedy(helm: Helm, chart: Path, case: str) -> None:
    overrides, message = CHECKED[case]

    outcome = helm.template(chart, overrides=merged(FLEET, overrides))

    assert outcome.code != 0
    assert message in outcome.errors, outcome.errors
    assert outcome.output == ""


@pytest.mark.parametrize("case", SCHEMA)
def test_schema__broken_values__name_the_place(helm: Helm, chart: Path, case: str) -> None:
    overrides, of_helm3, of_helm4 = SCHEMA[case]

    outcome = helm.template(chart, overrides=None if overrides is None else merged(FLEET, overrides))

    assert outcome.code != 0
    assert {"helm3": of_helm3, "helm4": of_helm4}[helm.version] in outcome.errors, outcome.errors


@pytest.mark.parametrize(
    ("overrides", "api", "remedy"),
    [
        (
            {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}},
            "gateway.networking.k8s.io/v1",
            "Gateway API",
        ),
        ({"monitoring": {"podMonitor": {"enabled": True}}}, "monitoring.coreos.com/v1", "prometheus-operator"),
        ({"monitoring": {"rules": {"enabled": True}}}, "monitoring.coreos.com/v1", "prometheus-operator"),
    ],
)
def test_checks__cluster_without_an_api__is_told_what_to_install(
    helm: Helm, chart: Path, overrides: dict[str, Any], api: str, remedy: str
) -> None:
    without = helm.template(chart, overrides=merged(FLEET, overrides), apis=())
    with_it = helm.template(chart, overrides=merged(FLEET, overrides), apis=(api,))

    assert without.code != 0
    assert f"this cluster has no {remedy} ({api})" in without.errors
    assert with_it.code == 0, with_it.errors


@pytest.mark.parametrize(
    ("path", "overrides"),
    [
        (("mesh", "native cpu"), pool(mesh_gpus=2)),
        (("mesh", "native cuda"), pool(device="cuda", gpus_per_node=2, mesh_gpus=2)),
        (("mesh", "sglang cpu"), pool(backend="sglang", mesh_gpus=2)),
    ],
)
def test_checks__what_the_fleet_file_refuses_in_this_release__the_chart_refuses_too(
    helm: Helm, chart: Path, path: tuple[str, ...], overrides: dict[str, Any]
) -> None:
    """And takes once `make chart` has found that the release takes it."""
    refusal = json.loads((CHART / "files" / "fleet.json").read_text())["refusals"]
    for key in path:
        refusal = refusal.get(key, "")

    outcome = helm.template(chart, overrides=merged(FLEET, overrides))

    assert (outcome.code != 0) == bool(refusal)
    assert refusal in outcome.errors
