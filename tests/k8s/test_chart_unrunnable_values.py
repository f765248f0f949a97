"""Values that no pod could run with, each with the message that a user sees, and their neighbours that are taken."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, merged

from scripts.chart.values import OLDEST_RAY

pytestmark = pytest.mark.k8s

MODEL = {"id": "a", "source": "org/a"}
FLEET = {"fleet": {"models": [MODEL]}}


def pool(**keys: Any) -> dict[str, Any]:
    return {"fleet": {"pools": [{"name": "p", **keys}]}}


def workers(**sides: dict[str, Any]) -> dict[str, Any]:
    return {"workers": {"resources": sides}}


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "cpu that is none": (
        workers(limits={"cpu": "abc"}),
        'muxfleet: workers.resources.limits.cpu = "abc": no quantity that Kubernetes reads; '
        "write cores such as 4 or 500m",
    ),
    "memory in another spelling": (
        {"head": {"resources": {"requests": {"memory": "16GB"}}}},
        'muxfleet: head.resources.requests.memory = "16GB": no quantity that Kubernetes reads; '
        "write a size such as 16Gi or 16G",
    ),
    "quantity below zero": (
        {"autoscaling": {"resources": {"limits": {"cpu": "-1"}}}},
        'muxfleet: autoscaling.resources.limits.cpu = "-1": no quantity that Kubernetes reads; ',
    ),
    "quantity of one pool": (
        {"pools": {"default": {"resources": {"limits": {"nvidia.com/gpu": "one"}}}}},
        'muxfleet: pools.default.resources.limits.nvidia.com/gpu = "one": no quantity that Kubernetes reads; '
        "write a number",
    ),
    "request above its limit": (
        workers(requests={"memory": "17000Mi"}, limits={"memory": "16Gi"}),
        'muxfleet: workers.resources.requests.memory = "17000Mi": above limits.memory (16Gi); '
        "lower it or raise the limit",
    ),
    "request above its limit in other units": (
        {"pools": {"default": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1999m"}}}}},
        "muxfleet: pools.default.resources.requests.cpu = 2: above limits.cpu (1999m); lower it or raise the limit",
    ),
    "pods killed before their drain is over": (
        {"workers": {"terminationGracePeriodSeconds": 90}},
        "muxfleet: workers.terminationGracePeriodSeconds = 90: below the 130 s that fleet.drain adds up to; "
        "remove it, or lower fleet.drain",
    ),
    "pods of one pool killed before their drain is over": (
        {"pools": {"default": {"terminationGracePeriodSeconds": 60}}, "fleet": {"drain": {"move_s": 0}}},
        "muxfleet: pools.default.terminationGracePeriodSeconds = 60: below the 100 s",
    ),
    "an old Ray": (
        {"rayVersion": "2.9.3"},
        'muxfleet: rayVersion = "2.9.3": older than muxfleet runs on; '
        f"build the image with Ray {OLDEST_RAY} or newer and write its version",
    ),
    "a Ray without a version": (
        {"rayVersion": "latest"},
        f'muxfleet: rayVersion = "latest": no version of Ray; write that of the image, {OLDEST_RAY} or newer',
    ),
    "repository with a scheme": (
        {"image": {"repository": "https://registry.example.com/muxfleet"}},
        'muxfleet: image.repository = "https://registry.example.com/muxfleet": no repository of images; '
        "write registry/name in lower case, without https:// and with the tag in image.tag",
    ),
    "repository with a tag": (
        {"image": {"repository": "registry.example.com:5000/muxfleet:0.1.0"}},
        'muxfleet: image.repository = "registry.example.com:5000/muxfleet:0.1.0": no repository of images; ',
    ),
    "repository in capitals": (
        {"image": {"repository": "registry.example.com/MuxFleet"}},
        'muxfleet: image.repository = "registry.example.com/MuxFleet": no repository of images; ',
    ),
    "tag that is none": (
        {"image": {"tag": "my build"}},
        'muxfleet: image.tag = "my build": no tag of an image; '
        "write letters, digits, dots, dashes and underscores, at most 128",
    ),
    "repository of one pool": (
        {"pools": {"default": {"image": {"repository": "http://x"}}}},
        'muxfleet: pools.default.image.repository = "http://x": no repository of images; '
        "write registry/name in lower case, without https:// and with the tag in pools.default.image.tag",
    ),
    "redis without a port": (
        {"redis": {"address": "redis.infra.svc"}},
        'muxfleet: redis.address = "redis.infra.svc": no address of a Redis; '
        "write host:port, redis://host:port, or rediss://host:port for TLS",
    ),
    "redis by another scheme": (
        {"redis": {"address": "http://redis:6379"}},
        'muxfleet: redis.address = "http://redis:6379": no address of a Redis; ',
    ),
    "redis on a port that is none": (
        {"redis": {"address": "redis:70000"}},
        'muxfleet: redis.address = "redis:70000": port 70000 is above 65535; write the Redis\'s own, for example 6379',
    ),
    "host with a scheme": (
        {"ingress": {"enabled": True, "host": "https://llm.example.com"}},
        'muxfleet: ingress.host = "https://llm.example.com": no host name; write a DNS name in lower case such as '
        "llm.example.com or *.example.com, without scheme, port, path and not an address",
    ),
    "host that is an address": (
        {"ingress": {"enabled": True, "host": "10.0.0.1"}},
        'muxfleet: ingress.host = "10.0.0.1": no host name; ',
    ),
    "host of a route with a port": (
        {"httpRoute": {"hostnames": ["llm.example.com", "llm.example.com:443"]}},
        'muxfleet: httpRoute.hostnames[1] = "llm.example.com:443": no host name; ',
    ),
    "host of a certificate with a scheme": (
        {
            "ingress": {
                "enabled": True,
                "host": "a.com",
                "tls": [{"hosts": ["a.com", "https://b.com"], "secretName": "c"}],
            }
        },
        'muxfleet: ingress.tls[0].hosts[1] = "https://b.com": no host name; ',
    ),
    "folder beside a cache": (
        {"fleet": {"models": [{"id": "b", "source": "../b"}]}, "modelCache": {"enabled": True}},
        'muxfleet: fleet.models[0].source = "../b": the folder /b, where pods of pool default have nothing mounted; ',
    ),
    "profile without a cache": (
        pool(profile="./node.parquet"),
        'muxfleet: fleet.pools[0].profile = "./node.parquet": a file below /models, where pods of pool p have nothing '
        "mounted; switch modelCache.enabled on, or remove it",
    ),
    "cache that nobody fills": (
        {"modelCache": {"enabled": True, "accessModes": ["ReadOnlyMany"]}},
        'muxfleet: modelCache.accessModes = ["ReadOnlyMany"]: the chart makes this claim, and nothing could be written '
        "into it; write [ReadWriteMany], or name a filled claim in modelCache.existingClaim",
    ),
    "address of the machine where the fleet was tried": (
        {"fleet": {"gateway": {"host": "192.168.1.5"}}},
        'muxfleet: fleet.gateway.host = "192.168.1.5": no address that every pod has; leave it out, or write 0.0.0.0',
    ),
    "port among those of Ray's workers": (
        {"fleet": {"gateway": {"port": 10002}}},
        "muxfleet: fleet.gateway.port = 10002: Ray uses this port in its pods; choose another, for example 8000",
    ),
    "batches where nothing is mounted": (
        {"fleet": {"gateway": {"batches": {"folder": "batches"}}}},
        'muxfleet: fleet.gateway.batches.folder = "/models/batches": is written to, and pods of pool default have '
        "nothing mounted there; switch modelCache.enabled on and name a folder below /models, or name one of a volume "
        "of yours",
    ),
    "state where nothing is mounted": (
        {"fleet": {"state": {"store": "file", "folder": "/srv/state"}}},
        'muxfleet: fleet.state.folder = "/srv/state": is written to, and pods of pool default have nothing mounted ',
    ),
    "cache where another volume is": (
        {"modelCache": {"enabled": True, "mountPath": "/tmp/"}},
        'muxfleet: modelCache.mountPath = "/tmp/": the pods have another volume there; choose another path, for '
        "example /models",
    ),
    "cache over all files of the image": (
        {"modelCache": {"enabled": True, "mountPath": "//"}},
        "mountPath",
    ),
    "resource that no node has": (
        merged(pool(device="cuda"), {"workers": {"gpuResource": "nvidia gpu"}}),
        "gpuResource",
    ),
    "environment that KubeRay takes in no head": (
        {"head": {"env": [{"name": "A"}, {"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}]}},
        'muxfleet: head.env[1].name = "RAY_REDIS_ADDRESS": KubeRay makes no cluster with it; remove it and set '
        "redis.address",
    ),
    "model of helm test that nobody serves": (
        {"tests": {"model": "b"}},
        'muxfleet: tests.model = "b": no model of the fleet; it has a',
    ),
    "pool with the name of the head's group": (
        {"fleet": {"pools": [{"name": "headgroup"}]}},
        'muxfleet: fleet.pools[0].name = "headgroup": KubeRay calls the head\'s group so; choose another',
    ),
    "folder without a cache": (
        {"fleet": {"models": [MODEL, {"id": "b", "source": "./b"}]}},
        'muxfleet: fleet.models[1].source = "./b": a folder below /models, where pods of pool default have nothing '
        "mounted; switch modelCache.enabled on, or write a Hugging Face id",
    ),
    "keys without their secret": (
        {"fleet": {"gateway": {"api_keys": "/etc/muxfleet/api-keys/keys.yaml"}}},
        'muxfleet: fleet.gateway.api_keys = "/etc/muxfleet/api-keys/keys.yaml": pods of pool default have no Secret or '
        "volume there; name the Secret in apiKeys.existingSecret and write /etc/muxfleet/api-keys/KEY",
    ),
    "keys that the rolling update has not": (
        {
            "fleet": {"gateway": {"api_keys": "/etc/muxfleet/api-keys/keys.yaml"}},
            "apiKeys": {"existingSecret": "keys"},
        },
        'muxfleet: upgrade.existingSecret = "": the rolling update asks the gateway, which asks for keys, whether the '
        "fleet is whole; name a Secret with a key made by muxfleet keys new --admin, "
        "or choose another upgrade.strategy",
    ),
    "key of a rolling update that there is none of": (
        {"upgrade": {"existingSecret": "admin", "strategy": "NewCluster"}},
        'muxfleet: upgrade.existingSecret = "admin": only for upgrade.strategy: RollingUpdate; remove it or change the '
        "strategy",
    ),
    "keys in a folder without a cache": (
        {"fleet": {"gateway": {"api_keys": "./keys.yaml"}}},
        'muxfleet: fleet.gateway.api_keys = "./keys.yaml": pods of pool default have no Secret or volume there; ',
    ),
    "KV above the pod's memory": (
        merged(pool(kv_memory="4GiB"), workers(requests={"memory": "2Gi"}, limits={"memory": "4Gi"})),
        "muxfleet: fleet.pools[0].kv_memory = 4294967296: leaves nothing of its pods' memory for weights "
        "(workers.resources.limits.memory is 4Gi); lower it or raise the limit",
    ),
    "KV above the memory of its own pool": (
        merged(pool(kv_memory="4GiB"), {"pools": {"p": {"resources": {"limits": {"memory": "1G"}}}}}),
        "muxfleet: fleet.pools[0].kv_memory = 4294967296: leaves nothing of its pods' memory for weights "
        "(pools.p.resources.limits.memory is 1G); lower it or raise the limit",
    ),
    "cache for one node under several": (
        merged(pool(nodes={"min": 3, "max": 3}), {"modelCache": {"enabled": True, "accessModes": ["ReadWriteOnce"]}}),
        'muxfleet: modelCache.accessModes = ["ReadWriteOnce"]: the fleet has 3 nodes, which all mount the claim; '
        "write [ReadWriteMany], or name a claim that they can share in modelCache.existingClaim",
    ),
    "KV above the memory of its GPU": (
        pool(device="cuda", gpu_type="a40", kv_memory="64GiB"),
        "muxfleet: fleet.pools[0].kv_memory = 68719476736: leaves nothing of the unit's memory for weights (a40: ",
    ),
    "mount where another is": (
        {"workers": {"volumes": [{"name": "x"}], "volumeMounts": [{"name": "x", "mountPath": "/tmp/"}]}},
        'muxfleet: workers.volumeMounts[0].mountPath = "/tmp/": another volume is mounted there; choose another path',
    ),
    "mount twice at a path": (
        {
            "head": {
                "volumes": [{"name": "x"}, {"name": "z"}],
                "volumeMounts": [{"name": "x", "mountPath": "/x"}, {"name": "z", "mountPath": "/x"}],
            }
        },
        'muxfleet: head.volumeMounts[1].mountPath = "/x": another volume is mounted there; choose another path',
    ),
    "mount of no volume": (
        {"head": {"volumeMounts": [{"name": "nope", "mountPath": "/x"}]}},
        'muxfleet: head.volumeMounts[0].name = "nope": no volume of this name; '
        "add it to head.volumes, or mount one of: tmp, home",
    ),
    "mount whose volume a pool leaves out": (
        {
            "workers": {"volumes": [{"name": "data"}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            "pools": {"default": {"volumes": []}},
        },
        'muxfleet: workers.volumeMounts[0].name = "data": no volume of this name; add it to pools.default.volumes',
    ),
    "volume twice": (
        {"workers": {"volumes": [{"name": "tmp"}]}},
        'muxfleet: workers.volumes[0].name = "tmp": the pods have a volume of this name; choose another',
    ),
    "label of the chart on pods": (
        {"workers": {"podLabels": {"app.kubernetes.io/instance": "mine"}}},
        'muxfleet: workers.podLabels[app.kubernetes.io/instance] = "mine": '
        "the chart sets this label and selects by it; remove it or choose another name",
    ),
    "label of the chart on one pool": (
        {"pools": {"default": {"podLabels": {"muxfleet.io/pool": "mine"}}}},
        'muxfleet: pools.default.podLabels[muxfleet.io/pool] = "mine": the chart sets this label and selects by it; ',
    ),
    "label of KubeRay on pods": (
        {"workers": {"podLabels": {"ray.io/group": "mine"}}},
        'muxfleet: workers.podLabels[ray.io/group] = "mine": KubeRay sets labels below ray.io/; '
        "remove it or choose another name",
    ),
    "label that is none": (
        {"head": {"podLabels": {"my team": "search"}}},
        'muxfleet: head.podLabels[my team] = "search": no label that Kubernetes takes; ',
    ),
    "label of a domain that is none": (
        pool(node_labels={"a..io/b": "c"}),
        'muxfleet: fleet.pools[0].node_labels[a..io/b] = "c": no label that Kubernetes takes; ',
    ),
    "label with a value that is none": (
        {"workers": {"podLabels": {"team": "search engines"}}},
        'muxfleet: workers.podLabels[team] = "search engines": no label that Kubernetes takes; write letters, digits '
        "and ._- between letters or digits, at most 63, the name after a domain/ or none",
    ),
    "label of nodes that is none": (
        pool(node_labels={"a b": "c"}),
        'muxfleet: fleet.pools[0].node_labels[a b] = "c": no label that Kubernetes takes; ',
    ),
    "selector of nodes that is none": (
        {"pools": {"default": {"nodeSelector": {"gpu": "H100 SXM"}}}},
        'muxfleet: pools.default.nodeSelector[gpu] = "H100 SXM": no label that Kubernetes takes; ',
    ),
    "label of the chart on a monitor": (
        {"monitoring": {"podMonitor": {"labels": {"app.kubernetes.io/name": "mine"}}}},
        'muxfleet: monitoring.podMonitor.labels[app.kubernetes.io/name] = "mine": '
        "the chart sets this label and selects by it; ",
    ),
    "environment with a name twice": (
        {"workers": {"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]}},
        'muxfleet: workers.env[2].name = "A": also workers.env[0].name; remove one of them',
    ),
    "environment of one pool with a name twice": (
        {"pools": {"default": {"env": [{"name": "A"}, {"name": "A"}]}}},
        'muxfleet: pools.default.env[1].name = "A": also pools.default.env[0].name; remove one of them',
    ),
    "name that begins with a digit": (
        {"fullnameOverride": "7b-models"},
        'muxfleet: fullnameOverride = "7b-models": the fleet would be called 7b-models, and KubeRay takes only names '
        "of lower-case letters, digits and dashes that begin with a letter; write one here",
    ),
}

# What looks like the rows above and runs.
TAKEN: Mapping[str, dict[str, Any]] = {
    "quantities of every spelling": {
        "workers": {
            "resources": {"requests": {"cpu": "0.5", "memory": "8e9"}, "limits": {"cpu": 4, "memory": 16000000000}}
        }
    },
    "request that is its limit in other units": workers(requests={"cpu": "4000m"}, limits={"cpu": "4"}),
    "a newer Ray": {"rayVersion": "2.100.0"},
    "a preview of Ray": {"rayVersion": "2.61.0rc1"},
    "repository with a port": {"image": {"repository": "localhost:5000/llm/mux__fleet", "tag": "0.1.0-cuda"}},
    "redis with TLS": {"redis": {"address": "rediss://redis.infra.svc:6380"}},
    "redis by address": {"redis": {"address": "[fd00::1]:6379"}},
    "all hosts below one": {"ingress": {"enabled": True, "host": "*.example.com"}},
    "folder in a cache": {"fleet": {"models": [{"id": "b", "source": "./b"}]}, "modelCache": {"enabled": True}},
    "folder in a volume of one's own": {
        "fleet": {"models": [{"id": "b", "source": "./b"}], "gateway": {"api_keys": "/models/keys/keys.yaml"}},
        "workers": {"volumes": [{"name": "data"}], "volumeMounts": [{"name": "data", "mountPath": "/models/"}]},
        "upgrade": {"existingSecret": "admin-key"},
    },
    "KV of a GPU": merged(
        pool(device="cuda", kv_memory="120GiB"), {"pools": {"p": {"resources": {"limits": {"memory": "64Gi"}}}}}
    ),
    "written folders in a cache, in an object store, of pods": {
        "fleet": {
            "gateway": {"batches": {"folder": "s3://b/x"}},
            "state": {"store": "file", "folder": "/models/state"},
        },
        "modelCache": {"enabled": True},
    },
    "address of all interfaces, of IPv6": {"fleet": {"gateway": {"host": "::", "port": 20000}}},
    "cache for one node under one": {"modelCache": {"enabled": True, "accessModes": ["ReadWriteOnce"]}},
    "two folders of a volume": {
        "workers": {
            "volumes": [{"name": "x"}],
            "volumeMounts": [{"name": "x", "mountPath": "/x"}, {"name": "x", "mountPath": "/x/y"}],
        }
    },
    "claim to read from": {
        "modelCache": {"enabled": True, "accessModes": ["ReadOnlyMany"], "existingClaim": "filled"},
    },
    "KV of two GPUs": pool(device="cuda", gpu_type="A40", gpus_per_node=2, mesh_gpus=2, kv_memory="64GiB"),
    "mount of the chart's volume": {"head": {"volumeMounts": [{"name": "home", "mountPath": "/opt/state"}]}},
    "labels of one's own": {"workers": {"podLabels": {"team": "search", "example.com/cost-centre": "4711", "x": ""}}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_checks__values_that_cannot_run__name_the_value_and_the_remedy(helm: Helm, chart: Path, case: str) -> None:
    overrides, message = REFUSED[case]

    outcome = helm.template(chart, overrides=merged(FLEET, overrides))

    assert outcome.code != 0
    assert message in outcome.errors, outcome.errors
    assert outcome.output == ""


@pytest.mark.parametrize("case", TAKEN)
def test_checks__values_close_to_broken_ones__are_taken(helm: Helm, chart: Path, case: str) -> None:
    outcome = helm.template(chart, overrides=merged(FLEET, TAKEN[case]))

    assert outcome.code == 0, outcome.errors
