"""The fleet file's `drain`."""

from typing import Annotated

from pydantic import Field

from deploy.fleet_file.section import Section

_END_S = 10.0
_START_S = 30.0


class DrainSection(Section):
    """Says how long what goes may take: a unit that is replaced, a gateway, a node. The times of Serve, Ray and
    Kubernetes follow from these.
    """

    move_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """A unit that shall go serves on for so long at most, while its models are loaded on others."""
    finish_s: Annotated[float, Field(ge=0, le=3600)] = 50.0
    """Then it opens no stream any more, and those that are open have so long to finish; what is left goes on elsewhere.
    Gateways take as long."""

    @property
    def unit_s(self) -> float:
        """Returns when Serve ends a unit that it has told to go."""
        return self.move_s + self.finish_s + _END_S

    @property
    def gateway_s(self) -> float:
        return self.finish_s + _END_S

    @property
    def node_s(self) -> float:
        """Returns how long Ray keeps a node that shall go. Serve tells a replica to go when no more than its own
        time is left; before that its successor has time to start elsewhere.
        """
        return self.unit_s + _START_S

    @property
    def pod_s(self) -> float:
        """Returns when Kubernetes kills the node's pod."""
        return self.node_s + _END_S
