"""Values of the Ray pods."""

from typing import Annotated, Literal

from pydantic import PositiveInt, StringConstraints

from scripts.chart.value_types import (
    Affinity,
    Digest,
    EnvVars,
    LocalObjectReferences,
    ObjectName,
    Quantity,
    Resources,
    Section,
    StringMap,
    Tolerations,
    TopologySpread,
    VolumeMounts,
    Volumes,
)

_RESOURCE = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"


class Image(Section):
    """The image of head and workers."""

    repository: Annotated[str, StringConstraints(min_length=1)] = "muxfleet"
    """Where your build of the project's Dockerfile is."""
    tag: str = ""
    """Default: the chart's appVersion."""
    digest: Digest = ""
    """sha256:...; used instead of the tag."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Kubernetes' imagePullPolicy."""
    pull_secrets: LocalObjectReferences = []
    """For example [{name: registry}]."""


class PoolImage(Section):
    """Instead of `image`, for the pods of one pool. One of its own leaves the digest of `image` out."""

    repository: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Default: image.repository."""
    tag: str = ""
    """Default: image.tag."""
    digest: Digest = ""
    """sha256:...; used instead of the tag."""


class PodGroup(Section):
    """What head and workers have in common."""

    resources: Resources = {}
    """Requests should equal limits: Ray plans with the limits."""
    node_selector: StringMap = {}
    """Labels of the Kubernetes nodes to run on."""
    tolerations: Tolerations = []
    """Taints to tolerate."""
    affinity: Affinity = {}
    """Pod and node affinity."""
    topology_spread_constraints: TopologySpread = []
    """A constraint without labelSelector gets the group's own pods."""
    priority_class_name: ObjectName = ""
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName = ""
    """RuntimeClass of the pods, for example nvidia."""
    pod_labels: StringMap = {}
    """Changing them replaces the pods, as upgrade.strategy says."""
    pod_annotations: StringMap = {}
    """Changing them replaces the pods, as upgrade.strategy says."""
    env: EnvVars = []
    """Extra environment."""
    volumes: Volumes = []
    """Extra volumes."""
    volume_mounts: VolumeMounts = []
    """Extra mounts of the Ray container."""
    shm_size: Quantity | Literal[""] = ""
    """Size of /dev/shm. Default: KubeRay's own, as large as the container's memory limit."""


class Head(PodGroup):
    """The Ray head. It runs no workload."""

    resources: Resources = {
        "requests": {"cpu": "2", "memory": "8Gi"},
        "limits": {"cpu": "2", "memory": "8Gi"},
    }
    """Of the Ray container. 8 GiB or more in production."""


class WorkerGroup(PodGroup):
    """One Kubernetes pod is one node of a fleet pool."""

    gpu_resource: Annotated[str, StringConstraints(pattern=_RESOURCE)] = "nvidia.com/gpu"
    """For cuda pools: gpus_per_node of it are added to requests and limits."""
    idle_timeout_seconds: PositiveInt | None = None
    """Default: autoscaling.idleTimeoutSeconds."""
    termination_grace_period_seconds: PositiveInt | None = None
    """Default: what fleet.drain adds up to. No less is taken: Kubernetes would kill what still drains."""


class Pool(WorkerGroup):
    """What differs from `workers` for one fleet pool."""

    image: PoolImage = PoolImage()
    """With the same Ray and Python as the head's."""


class Workers(WorkerGroup):
    """Defaults of all pools; `pools.NAME` overrides them key by key."""

    resources: Resources = {}
    """Best as large as the node. What neither side names is 4 CPU and 16Gi; in cuda pools for each GPU."""
