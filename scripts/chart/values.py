"""The chart's values: values.yaml, values.schema.json and the table in helm/README.md are written from them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, StringConstraints

from deploy.fleet_file.settings import FleetFile
from scripts.chart.pod_values import Head, Image, Pool, Workers
from scripts.chart.value_types import (
    AnyObject,
    DnsLabel,
    IngressTls,
    NetworkPolicyEgressRules,
    NetworkPolicyPeers,
    ObjectName,
    Percent,
    PodSecurityContext,
    Quantity,
    Resources,
    Section,
    SecurityContext,
    ServiceSpec,
    Share,
    StringMap,
)

RAY_VERSION = "2.60.0"
"""As in constraints.txt, which a test compares."""

OLDEST_RAY = "2.60.0"
"""As in pyproject.toml, which a test compares."""


_PATH = "/[-A-Za-z0-9._~%:@+=/]*"
RoutedPaths = Annotated[
    list[Annotated[str, StringConstraints(pattern=f"^{_PATH}$")]], Field(min_length=1, max_length=64)
]
PUBLIC_PATHS = ("/v1", "/tokenize", "/detokenize", "/health", "/ready", "/version", "/openapi.json")
"""As in docs/security.md."""


class Gateways(Section):
    """Pods for gateways alone, without GPUs. `pools.gateways` says what they look like."""

    nodes: NonNegativeInt = 0
    """How many; fleet.gateway.node_labels are theirs. 0: gateways run on the pools' nodes."""


class Autoscaling(Section):
    """Ray's autoscaler (v2) adds worker pods between nodes.min and nodes.max of each fleet pool."""

    enabled: bool = False
    """Needed where nodes.max is above nodes.min, and by the incremental upgrade."""
    idle_timeout_seconds: PositiveInt = 300
    """A pod without a unit for so long goes."""
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] = "Default"
    """How eagerly pods are asked for."""
    resources: Resources = {
        "requests": {"cpu": "500m", "memory": "512Mi"},
        "limits": {"cpu": "500m", "memory": "512Mi"},
    }
    """Of the autoscaler's container in the head pod."""


class Upgrade(Section):
    """What happens when pods change: image, resources, environment. Changes of models and SLOs never touch pods."""

    strategy: Literal["RollingUpdate", "NewCluster", "NewClusterWithIncrementalUpgrade", "None"] = "RollingUpdate"
    """RollingUpdate replaces pods one by one, NewCluster needs the GPUs twice for a while, None applies nothing."""
    existing_secret: ObjectName = ""
    """RollingUpdate only: Secret with an API key, where the gateway asks for keys."""
    key: Annotated[str, StringConstraints(min_length=1)] = "api-key"
    """Key in that Secret."""
    resources: Resources = {
        "requests": {"cpu": "100m", "memory": "512Mi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    }
    """RollingUpdate only: of the Job that replaces the pods."""
    gateway_class_name: ObjectName = ""
    """Incremental only: a class of a Gateway API controller."""
    step_size_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """Incremental only: share of traffic moved at once."""
    interval_seconds: PositiveInt = 30
    """Incremental only: pause between two steps."""
    max_surge_percent: Percent = 100
    """Incremental only: extra capacity of the new cluster."""
    deletion_delay_seconds: NonNegativeInt = 60
    """How long the old cluster stays after the switch."""


class Startup(Section):
    """Patience while the fleet starts."""

    deadline_seconds: Annotated[int, Field(ge=60)] = 1800
    """How long pulling the image and loading the models may take; afterwards KubeRay gives the RayService up."""


class Redis(Section):
    """GCS fault tolerance: with a Redis the fleet survives the loss of its head pod. Bring a highly available one."""

    address: str = ""
    """host:port, redis://host:port, or rediss://host:port for TLS. Empty: no fault tolerance."""
    username: str = ""
    """Only if the Redis has users."""
    existing_secret: ObjectName = ""
    """Secret with the password."""
    password_key: Annotated[str, StringConstraints(min_length=1)] = "password"
    """Key of the password in that Secret."""


class RayAuth(Section):
    """Token authentication inside the Ray cluster, its dashboard included."""

    mode: Literal["token", "disabled"] = "token"
    """disabled lets every pod that reaches the cluster run code in it."""
    allow_disabled: bool = False
    """Must be true for mode: disabled."""
    existing_secret: ObjectName = ""
    """Secret with the key auth_token. Default: KubeRay makes one."""


class SecretReference(Section):
    existing_secret: ObjectName = ""
    """Name of a Secret that is there."""
    key: Annotated[str, StringConstraints(min_length=1)]
    """Key in the Secret."""


class HuggingFace(SecretReference):
    """Token for gated models."""

    key: Annotated[str, StringConstraints(min_length=1)] = "token"
    """Key in the Secret."""


class ApiKeys(Section):
    """The file of API keys (`muxfleet keys`). Name it in fleet.gateway.api_keys as /etc/muxfleet/api-keys/KEY."""

    existing_secret: ObjectName = ""
    """Secret that holds the file. Changes reach the gateways without a restart."""


class ModelCache(Section):
    """Checkpoints and the Hugging Face cache, shared by all pods."""

    enabled: bool = False
    """Without it every pod downloads for itself."""
    existing_claim: DnsLabel = ""
    """A claim that is there, instead of a new one."""
    storage_class_name: ObjectName = ""
    """Default: the cluster's default class."""
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"]] = ["ReadWriteMany"]
    """Pods on several nodes need ReadWriteMany."""
    read_only: bool = False
    """Pods only read the existing claim, and ask no hub (HF_HUB_OFFLINE). Follows from accessModes: [ReadOnlyMany]."""
    size: Quantity = "200Gi"
    """Of the claim."""
    keep: bool = True
    """The claim outlives `helm uninstall`."""
    mount_path: Annotated[str, StringConstraints(pattern="^(/[-A-Za-z0-9._~@+=]+)+/?$")] = "/models"
    """Relative sources of models are looked up here, as with `muxfleet render --source-root`."""


class Service(Section):
    """The Service in front of the gateways, NAME-serve-svc."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """LoadBalancer makes it reachable from outside."""
    annotations: StringMap = {}
    """For example of a cloud's load balancer."""
    spec: ServiceSpec = {}
    """More of its spec, for example {loadBalancerSourceRanges: [192.0.2.0/24], ipFamilyPolicy: PreferDualStack}."""


class Ingress(Section):
    """Route from outside by an Ingress controller. Refused with the incremental upgrade, which brings a Gateway."""

    enabled: bool = False
    """Make one."""
    class_name: ObjectName = ""
    """Default: the cluster's default class."""
    annotations: StringMap = {}
    """Switch response buffering off and the read timeout up for streams; names differ by controller."""
    host: str = ""
    """Empty: every host."""
    paths: RoutedPaths = list(PUBLIC_PATHS)
    """Prefixes that are routed. Metrics, /fleet and /console stay inside by default; [/] routes all."""
    path: Annotated[str, StringConstraints(pattern=f"^({_PATH})?$")] = ""
    """Of charts before `paths`, whose values an upgrade may bring: the only prefix then, in place of those."""
    tls: IngressTls = []
    """Hosts and the Secrets with their certificates."""


class ParentReference(Section):
    name: Annotated[str, StringConstraints(min_length=1)]
    namespace: str | None = None
    section_name: str | None = None
    port: Annotated[int | None, Field(ge=1, le=65535)] = None


class HttpRoute(Section):
    """Gateway API route to the fleet."""

    enabled: bool = False
    """Make one."""
    parent_refs: list[ParentReference] = []
    """Gateways that take it, for example [{name: public, namespace: infra}]."""
    hostnames: list[str] = []
    """Empty: every host of the Gateway."""
    paths: RoutedPaths = list(PUBLIC_PATHS)
    """Prefixes that are routed, as of the Ingress."""
    annotations: StringMap = {}
    """Of the route."""
    request_timeout: Annotated[str, StringConstraints(pattern="^([0-9]{1,5}(h|m|s|ms)){1,4}$")] = "0s"
    """0s: none; streams may take minutes."""


class NetworkPolicy(Section):
    """Who may talk to the fleet's pods, and to whom they may talk."""

    enabled: bool = False
    """Make one for all pods of the release."""
    clients: NetworkPolicyPeers = []
    """Who may reach the gateway's port. Empty: everyone. An Ingress or Gateway controller is one of them."""
    operator_namespace: DnsLabel = ""
    """Where KubeRay's operator runs. Empty: any namespace."""
    monitoring_namespace: DnsLabel = ""
    """Where Prometheus runs. Empty: any namespace."""
    allow_internet: bool = True
    """HTTPS to addresses outside the private ranges, for downloads of models."""
    extra_egress: NetworkPolicyEgressRules = []
    """For example to a proxy or to a collector. The port of redis.address is open without it."""


class PodDisruptionBudget(Section):
    """How many pods a drain of nodes may take."""

    enabled: bool = True
    """Make one per pool that has more pods than a drain may take."""
    max_unavailable: PositiveInt = 1
    """Pods of one pool that a drain of nodes may take at once: its budget keeps nodes.min less these (minAvailable)."""
    protect_head: bool = False
    """A drain never evicts the head by itself: sensible without Redis, where its loss restarts the fleet."""


class PodMonitor(Section):
    enabled: bool = False
    """Make one for head and workers."""
    labels: StringMap = {}
    """Labels that your Prometheus selects monitors by."""
    interval: Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m)$")] = "15s"
    """Between two scrapes."""


class PrometheusRules(Section):
    """Alerts and recording rules; needs prometheus-operator. docs/runbook.md has a section per alert."""

    enabled: bool = False
    """Make them."""
    labels: StringMap = {}
    """Labels that your Prometheus selects rules by."""
    slo_objective: Share = 0.99
    """Share of requests that must meet their model's targets; those that were shed or failed miss them."""
    slo_min_requests: PositiveInt = 20
    """The burn alerts are silent for a model with fewer requests in their window (an hour, six hours)."""
    runbook_url: str = ""
    """Prefix of the alerts' runbook_url; the alert's name in lower case is appended."""


class Dashboards(Section):
    """ConfigMaps for Grafana's sidecar."""

    enabled: bool = False
    """Make them."""
    labels: StringMap = {"grafana_dashboard": "1"}
    """What the sidecar looks for."""
    annotations: StringMap = {}
    """For example a folder."""


class Monitoring(Section):
    """What Prometheus and Grafana need."""

    pod_monitor: PodMonitor = PodMonitor()
    """The gateways' figures and Ray's own; needs prometheus-operator."""
    rules: PrometheusRules = PrometheusRules()
    dashboards: Dashboards = Dashboards()


class ServiceAccount(Section):
    """Of all pods. It has no rights of its own; for the autoscaler KubeRay adds what that needs."""

    create: bool = True
    """Off: name one that is there."""
    name: DnsLabel = ""
    """Default: the release's full name."""
    annotations: StringMap = {}
    """For example of a cloud identity."""


class TestPod(Section):
    """`helm test`: lists the models and completes one prompt."""

    enabled: bool = True
    """Make the pod."""
    model: str = ""
    """Default: the first model of the fleet."""
    existing_secret: ObjectName = ""
    """Secret with an API key, where the gateway asks for keys. Default: that of upgrade.existingSecret."""
    key: Annotated[str, StringConstraints(min_length=1)] = "api-key"
    """Key in that Secret."""
    timeout_seconds: PositiveInt = 120
    """How long each request may take."""


class KubeRayOperator(BaseModel):
    """Values of the optional subchart pass through."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    enabled: bool = False
    """Install KubeRay's operator along; for a trial. Its CRDs only come with the first install."""


class ChartValues(Section):
    name_override: DnsLabel = ""
    """Instead of the chart's name in labels and names."""
    fullname_override: DnsLabel = ""
    """Of all objects; at most 47 characters count."""
    fleet: FleetFile
    """The fleet file, as for `muxfleet up`; `muxfleet schema` explains every key."""
    image: Image = Image()
    ray_version: str = RAY_VERSION
    """Ray in the image."""
    head: Head = Head()
    workers: Workers = Workers()
    pools: dict[str, Pool] = {}
    """By name of a fleet pool: what differs from `workers`, and `image` (repository, tag, digest) of its own."""
    gateways: Gateways = Gateways()
    autoscaling: Autoscaling = Autoscaling()
    upgrade: Upgrade = Upgrade()
    startup: Startup = Startup()
    redis: Redis = Redis()
    ray_auth: RayAuth = RayAuth()
    hugging_face: HuggingFace = HuggingFace()
    api_keys: ApiKeys = ApiKeys()
    model_cache: ModelCache = ModelCache()
    service: Service = Service()
    ingress: Ingress = Ingress()
    http_route: HttpRoute = HttpRoute()
    network_policy: NetworkPolicy = NetworkPolicy()
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()
    monitoring: Monitoring = Monitoring()
    service_account: ServiceAccount = ServiceAccount()
    pod_security_context: PodSecurityContext = {
        "runAsNonRoot": True,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    """On OpenShift set fsGroup to null: it gives a range of its own."""
    security_context: SecurityContext = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    """Of every container."""
    tests: TestPod = TestPod()
    extra_objects: list[AnyObject] = []
    """Kubernetes objects to install along."""
    kuberay_operator: Annotated[KubeRayOperator, Field(alias="kuberay-operator")] = KubeRayOperator()
    global_: Annotated[AnyObject, Field(alias="global")] = {}
    """Helm's own; not used."""
