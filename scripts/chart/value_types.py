"""The types that the chart's values are made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, alias_generator=to_camel)


def _kubernetes(definition: str, *, is_list: bool = False) -> WithJsonSchema:
    """A type of the Kubernetes API; `kubernetes_types` puts its schema in place of the mark."""
    mark: dict[str, Any] = {"x-kubernetes-type": definition}
    return WithJsonSchema({"type": "array", "items": mark} if is_list else mark)


Affinity = Annotated[dict[str, Any], _kubernetes("io.k8s.api.core.v1.Affinity")]
Tolerations = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.Toleration", is_list=True)]
TopologySpread = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.TopologySpreadConstraint", is_list=True)]
Resources = Annotated[dict[str, Any], _kubernetes("io.k8s.api.core.v1.ResourceRequirements")]
EnvVars = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.EnvVar", is_list=True)]
Volumes = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.Volume", is_list=True)]
VolumeMounts = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.VolumeMount", is_list=True)]
PodSecurityContext = Annotated[dict[str, Any], _kubernetes("io.k8s.api.core.v1.PodSecurityContext")]
SecurityContext = Annotated[dict[str, Any], _kubernetes("io.k8s.api.core.v1.SecurityContext")]
LocalObjectReferences = Annotated[list[Any], _kubernetes("io.k8s.api.core.v1.LocalObjectReference", is_list=True)]
NetworkPolicyPeers = Annotated[list[Any], _kubernetes("io.k8s.api.networking.v1.NetworkPolicyPeer", is_list=True)]
NetworkPolicyEgressRules = Annotated[
    list[Any], _kubernetes("io.k8s.api.networking.v1.NetworkPolicyEgressRule", is_list=True)
]
ServiceSpec = Annotated[dict[str, Any], _kubernetes("io.k8s.api.core.v1.ServiceSpec")]
IngressTls = Annotated[list[Any], _kubernetes("io.k8s.api.networking.v1.IngressTLS", is_list=True)]
StringMap = dict[str, str]
DnsLabel = Annotated[str, StringConstraints(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")]
ObjectName = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Percent = Annotated[int, Field(ge=0, le=100)]
Share = Annotated[float, Field(gt=0, lt=1)]
AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
